"""The public names and the modules they are in; `__init__.py` imports each when it is first used."""

from .counts import Characteristics as Characteristics
from .counts.targets import Targets as Targets
from .foundation.compilation import keep_compiled_programs as keep_compiled_programs
from .foundation.errors import UserError as UserError
from .lab.evaluation import Evaluator as Evaluator
from .lab.explaining.explain import explain_gradients as explain_gradients
from .lab.explaining.explain import explain_values as explain_values
from .lab.group_losses import group_losses as group_losses
from .lab.group_losses import segment_groups as segment_groups
from .lab.metrics import JsonLinesWriter as JsonLinesWriter
from .lab.metrics import TensorBoardWriter as TensorBoardWriter
from .lab.noise import find_outliers as find_outliers
from .lab.noise import loss_noise as loss_noise
from .lab.sampling.estimate import estimate as estimate
from .lab.sampling.sample import Sample as Sample
from .lab.sampling.sample import sample as sample
from .lab.training_log import TrainingLog as TrainingLog
from .ordering.composition.compose import concatenate as concatenate
from .ordering.composition.compose import reverse as reverse
from .ordering.composition.compose import shuffle_blocks as shuffle_blocks
from .ordering.measures.balance import Balance as Balance
from .ordering.measures.comparison import Comparison as Comparison
from .ordering.measures.profile import group_timeline as group_timeline
from .ordering.measures.profile import window_profile as window_profile
from .ordering.objective import Objective as Objective
from .pipeline.building import build as build
from .pipeline.repacking import repack as repack
from .schema import Ordering as Ordering
from .schema import Segments as Segments
from .sequences.packing.base import pack as pack
from .sequences.token_store.linking import link_tokens as link_tokens
from .streaming.dataset import Dataset as Dataset
from .streaming.dataset import open_dataset as open_dataset
from .streaming.dataset.calls import compare as compare
from .streaming.dataset.calls import measure as measure
from .streaming.dataset.calls import order as order
from .streaming.loader.loader import make_loader as make_loader
from .streaming.loader.sampler import DecodeRecord as DecodeRecord
from .streaming.loader.sampler import OrderSampler as OrderSampler
from .streaming.loader.streaming import stream_batches as stream_batches
from .streaming.loader.watching import BatchMetrics as BatchMetrics
from .streaming.loader.watching import watch_batches as watch_batches
from .streaming.run.making import create_schedule as create_schedule
from .streaming.run.making import extend_schedule as extend_schedule
from .streaming.run.making import skip_positions as skip_positions
from .streaming.run.run import Run as Run
from .streaming.run.run import make_run as make_run
from .streaming.run.source import SequenceSource as SequenceSource
from .streaming.run.stored import open_schedule as open_schedule

__all__: list[str]
__version__: str

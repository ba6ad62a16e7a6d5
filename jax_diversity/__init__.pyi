"""The public names and the modules they are in; `__init__.py` imports each when it is first used."""

from .dataset import Dataset as Dataset
from .dataset import open_dataset as open_dataset
from .dataset.calls import compare as compare
from .dataset.calls import measure as measure
from .dataset.calls import order as order
from .foundation.compilation import keep_compiled_programs as keep_compiled_programs
from .foundation.errors import UserError as UserError
from .lab.explaining.explain import Explanation as Explanation
from .lab.explaining.explain import explain_gradients as explain_gradients
from .lab.explaining.explain import explain_values as explain_values
from .lab.group_losses import group_losses as group_losses
from .lab.group_losses import segment_groups as segment_groups
from .lab.metrics import JsonLinesWriter as JsonLinesWriter
from .lab.metrics import TensorBoardWriter as TensorBoardWriter
from .loader.loader import make_loader as make_loader
from .loader.sampler import OrderSampler as OrderSampler
from .loader.streaming import stream_batches as stream_batches
from .loader.watching import BatchMetrics as BatchMetrics
from .loader.watching import watch_batches as watch_batches
from .measures.balance import Balance as Balance
from .measures.comparison import Comparison as Comparison
from .measures.duplicates import duplicate_gaps as duplicate_gaps
from .measures.profile import group_timeline as group_timeline
from .measures.profile import window_profile as window_profile
from .ordering.composition.compose import concatenate as concatenate
from .ordering.composition.compose import reverse as reverse
from .ordering.composition.compose import shuffle_blocks as shuffle_blocks
from .ordering.composition.duplicates import separate_duplicates as separate_duplicates
from .ordering.composition.hosts import merge_orderings as merge_orderings
from .ordering.composition.hosts import partition_sequences as partition_sequences
from .ordering.composition.hosts import select_sequences as select_sequences
from .ordering.objective import Objective as Objective
from .ordering.plan import Targets as Targets
from .packing.base import Packed as Packed
from .packing.base import pack as pack
from .packing.report import PackingReport as PackingReport
from .pipeline.building import build as build
from .pipeline.repacking import repack as repack
from .run.making import create_schedule as create_schedule
from .run.making import extend_schedule as extend_schedule
from .run.making import skip_positions as skip_positions
from .run.run import Run as Run
from .run.run import make_run as make_run
from .run.source import SequenceSource as SequenceSource
from .run.stored import open_schedule as open_schedule
from .schema import Characteristics as Characteristics
from .schema import Document as Document
from .schema import Ordering as Ordering
from .schema import Segments as Segments

__all__: list[str]
__version__: str

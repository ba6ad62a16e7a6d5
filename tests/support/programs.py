"""Programs that tests start in processes of their own: emulated devices, several hosts."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
# A busy machine: devices wait for each other within one step, and a program for the slowest of all.
TIMEOUT = 600
PATIENCE = "--xla_cpu_collective_call_warn_stuck_timeout_seconds=300 " + (
    "--xla_cpu_collective_call_terminate_timeout_seconds=600"
)


def devices(number: int) -> str:
    """XLA_FLAGS of a program with some emulated devices, compiled as the programs of all tests."""
    return f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={number} {PATIENCE}"


def start(module: str, *arguments: str, num_devices: int) -> subprocess.Popen[str]:
    """A program with some emulated devices of its own."""
    environment = {**os.environ, "XLA_FLAGS": devices(num_devices), "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", f"tests.support.{module}", *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment, cwd=ROOT)


def answers(*programs: subprocess.Popen[str]) -> list[dict[str, Any]]:
    """What each program printed last."""
    try:
        outputs = [program.communicate(timeout=TIMEOUT) for program in programs]
    finally:
        for program in programs:
            program.kill()
    for program, (_, errors) in zip(programs, outputs, strict=True):
        assert program.returncode == 0, errors[-3000:]
    return [json.loads(printed.splitlines()[-1]) for printed, _ in outputs]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]

"""Damage model folders at random (by a seed) and load each: whatever a folder contains, loading
soon gives a usable model or one sentence, and starts no program.

`python -m tests.attribution.damage FOLDER --cases 10000 --seed 3` takes the models in a folder as
`tests.attribution.damage.build` writes them; without one it builds them.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SECONDS = 60
MEMORY = 12 << 30
"""Limit on address space in bytes; torch alone maps some 5 GB."""
STARTS = (
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.fork",
    "socket.connect",
    "socket.getaddrinfo",
    "webbrowser.open",
)

VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2,
    3,
    7,
    31,
    10**4,
    10**6,
    10**7,
    2**31 - 1,
    2**31,
    2**63,
    10**400,
    0.0,
    -0.5,
    1e-300,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "x",
    "true",
    "\udcff",
    "\x00",
    "gelu",
    "torch.utils.collect_env.main",
    "torch.nn.modules.activation.ReLU",
    "os.system",
    "../other",
    "/etc/passwd",
    "/dev/zero",
    "organization/model",
    "cosine",
    "dot",
    "mean",
    "bert",
    "t5",
    "clip",
    "sentence_transformers.models.Dense",
    "x" * 100_000,
    [],
    {},
    [[]],
    [None],
    ["x"],
    {"": None},
    {"a": 1},
    [1, 2, 3],
    {"auto_map": {"AutoModel": "evil.Thing"}},
    {"text": 5},
)
KEYS = (
    "auto_map",
    "architectures",
    "model_type",
    "num_hidden_layers",
    "num_labels",
    "hidden_size",
    "hidden_act",
    "attn_implementation",
    "quantization_config",
    "transformers_weights",
    "prompts",
    "activation_fn",
    "activation_function",
    "max_seq_length",
    "model_args",
    "tokenizer_class",
    "layer_types",
    "is_decoder",
    "add_cross_attention",
    "tie_word_embeddings",
    "dtype",
    "rope_theta",
    "rope_parameters",
    "pad_token_id",
    "vocab_size",
    "type_vocab_size",
    "id2label",
    "pruned_heads",
    "similarity_fn_name",
    "modality_config",
    "module_output_name",
    "transformer_task",
    "query_expansion",
    "do_lower_case",
    "processing_kwargs",
    "chat_template",
    "added_tokens_decoder",
    "extra_special_tokens",
    "processor_class",
    "requirements",
    "__version__",
)

KINDS = (
    "cut",
    "flip",
    "header",
    "pipe",
    "link",
    "folder",
    "gone",
    "other",
    "deep",
    "empty",
    "pickle",
    "twice",
)
"""Changes to a whole file."""


def build(folder: Path) -> list[Path]:
    """A tiny model of each family below `folder`."""
    from tests.support import tiny_families, tiny_models

    bert, labse = (tiny_models.build(name, folder / name) for name in ("bert", "labse"))
    causal = tiny_models.build("qwen3-right", folder / "causal")
    return [
        bert,
        labse,
        causal,
        tiny_families.cross_encoder(bert, folder / "cross"),
        tiny_families.late_interaction(bert, folder / "late" / "model"),
        tiny_families.sparse(bert, folder / "sparse"),
        tiny_families.seq2seq(folder / "seq2seq"),
        tiny_families.generative(causal, folder / "generative"),
    ]


def damage(folder: Path, chance: random.Random) -> str:
    """Change one or a few things; returns what."""
    said = []
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        files = sorted(p for p in folder.rglob("*") if p.is_file() and not p.is_symlink())
        if not files:
            break
        path = chance.choice(files)
        place = path.relative_to(folder).as_posix()
        if path.suffix == ".json" and chance.random() < 0.75:
            said.append(f"{place}: {_settings(path, chance)}")
        else:
            said.append(f"{place}: {_bytes(path, files, chance)}")
    return "; ".join(said)


def _settings(path: Path, chance: random.Random) -> str:
    try:
        content = json.loads(path.read_text())
    except (ValueError, RecursionError):
        return "damaged before"
    value = chance.choice(VALUES)
    where = list(_places(content))
    inside, key = chance.choice(where) if where else (None, None)
    if inside is None or chance.random() < 0.1:
        content, said = value, "all"
    elif chance.random() < 0.1:
        del inside[key]
        said = f"without {key}"
    elif isinstance(inside, dict) and chance.random() < 0.3:
        key = chance.choice(KEYS)
        inside[key] = value
        said = f"new {key}"
    else:
        inside[key] = value
        said = str(key)
    path.write_text(json.dumps(content))
    return f"{said} = {ascii(value)[:60]}"


def _places(value: Any, depth: int = 0) -> Iterator[tuple[Any, Any]]:
    keys = list(value) if isinstance(value, dict) else range(len(value)) if _is_list(value) else ()
    for key in list(keys)[:400]:
        yield value, key
        if depth < 5:
            yield from _places(value[key], depth + 1)


def _is_list(value: object) -> bool:
    return isinstance(value, list)


def _bytes(path: Path, files: list[Path], chance: random.Random) -> str:
    content = bytearray(path.read_bytes())
    kind = chance.choice(KINDS)
    if kind == "cut":
        path.write_bytes(content[: chance.randrange(len(content) + 1)])
    elif kind in ("flip", "header") and content:
        most = min(len(content), 4096) if kind == "header" else len(content)
        for _ in range(chance.choice((1, 3, 50))):
            content[chance.randrange(most)] = chance.randrange(256)
        path.write_bytes(content)
    elif kind in ("pipe", "link", "folder", "gone", "pickle"):
        path.unlink()
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "link":
            path.symlink_to(chance.choice(("/dev/zero", "absent", path.name, "/etc/passwd", "..")))
        elif kind == "folder":
            path.mkdir()
        elif kind == "pickle":
            path.with_name("pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    elif kind == "other":
        path.write_bytes(chance.choice(files).read_bytes())
    elif kind == "deep":
        path.write_text("[" * 5000 + "]" * 5000)
    elif kind == "twice":
        path.write_bytes(content + content)
    else:
        path.write_bytes(b"")
    return kind


class Slow(BaseException):
    """A case took longer than SECONDS."""


@contextmanager
def _bounded() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise Slow

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)


def use(folder: Path) -> str:
    """The outcome for a user of the folder: "used", or the form of the error.

    Raises:
        AssertionError: the error is not one sentence.
    """
    from poslens.attribution.errors import UserError
    from poslens.attribution.methods import METHODS, make_method
    from poslens.attribution.retrievers import load, resolve
    from poslens.attribution.retrievers.self_check import PROBE, check_retriever

    try:
        spec = resolve.register_folder("mine", folder)
        retriever = load.load(spec, device="cpu")
        unfit = check_retriever(retriever).unfit
        if "saliency" not in unfit:
            METHODS["saliency"].compute(retriever, make_method("saliency"), [PROBE])
    except UserError as error:
        sentence = str(error)
        assert sentence and "\n" not in sentence and str(folder) not in sentence, sentence
        assert len(sentence) < 400 and sentence.endswith("."), sentence
        return "refused"
    return "used"


def run(models: list[Path], cases: int, seed: int) -> list[str]:
    """Damage and load `cases` folders; return what went wrong (empty if nothing did)."""
    wrong: list[str] = []
    ends: Counter[str] = Counter()
    started: list[str] = []
    slowest = 0.0

    def watch(event: str, args: tuple[Any, ...]) -> None:
        if event in STARTS:
            started.append(f"{event} {ascii(args)[:100]}")

    with tempfile.TemporaryDirectory() as scratch:
        for model in models:  # what libraries import and open at first is not caused by the folder
            assert use(model) == "used", model
        sys.addaudithook(watch)
        for number in range(cases):
            chance = random.Random(f"{seed}/{number}")
            folder = Path(scratch) / f"m{number}"
            shutil.copytree(chance.choice(models), folder)
            what = damage(folder, chance)
            begin = time.monotonic()
            try:
                with _bounded():
                    ends[use(folder)] += 1
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
                last = traceback.format_exception(error)[-1].strip()[:200]
                place = traceback.extract_tb(error.__traceback__)[-1]
                wrong.append(
                    f"{number}: {what}: {last} at {Path(place.filename).name}:{place.lineno}"
                )
            slowest = max(slowest, time.monotonic() - begin)
            if started:
                wrong.append(f"{number}: {what}: {started[:3]}")
                started.clear()
            shutil.rmtree(folder)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{cases} folders: {dict(ends)}, slowest {slowest:.1f} s, at most {peak:.1f} GB")
    return wrong


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    os.environ["HF_HUB_OFFLINE"] = "1"
    import logging
    import warnings

    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    import torch
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        where = Path(given.folder) if given.folder else Path(scratch)
        wrong = run(build(where), given.cases, given.seed)
    print("\n".join(wrong))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()

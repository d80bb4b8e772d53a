"""Sentence vectors by all-MiniLM-L6-v2 (onnxruntime)."""

from __future__ import annotations

import base64
import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnxruntime
from tokenizers import Encoding, Tokenizer

from channel import has_left
from errors import ApiError, ClientGone

MODEL = "all-minilm-l6-v2"
DIMENSIONS = 384
# The model has 512 positions. Its authors silently truncate texts at 256 tokens, which loses text without an error.
# Texts of up to 512 tokens are therefore embedded as a whole, and longer texts are refused.
TOKENS_MAX = 512
INPUTS_MAX = 2048
# Longer texts are refused without tokenizing them, which takes seconds for a book. Text of this length has more than
# 512 tokens, unless it consists of blanks or of a single endless word.
CHARACTERS_MAX = 65_536
# Maximum texts of one run of the model, and maximum tokens including padding. Measured: larger batches are not faster.
BATCH_TEXTS_MAX = 16
BATCH_TOKENS_MAX = 512
THREADS_MAX = 4

_CHECK = ("hello", "The cat sat on the mat.", "Rates rose again in the third quarter, to the surprise of most banks.")


class Embedder:
    """The embedding model, which is loaded on first use. Thread-safe."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._threads = min(THREADS_MAX, os.cpu_count() or 1)
        # Limits how many batches the model runs at once, over all calls. A call waits again for each batch, so a large call does not block
        # small ones.
        self._runs = threading.Semaphore(self._threads)
        self._session: onnxruntime.InferenceSession | None = None
        self._tokenizer: Tokenizer | None = None
        self._batch_texts = BATCH_TEXTS_MAX

    def embed(self, texts: list[str], client: socket.socket | None) -> tuple[np.ndarray, list[int]]:
        """
        Returns a unit vector of little-endian float32 for each text, and the number of tokens of each text.

        Equal texts give exactly equal vectors in every batch. Raises ApiError `context_length_exceeded` with the text's
        `index`, and ClientGone if the caller disconnects.
        """
        self._load()
        for index, text in enumerate(texts):
            if len(text) > CHARACTERS_MAX:
                raise too_long(index, f"{len(text)} characters")
        encodings = self._tokenizer.encode_batch(texts)
        for index, encoding in enumerate(encodings):
            if len(encoding.ids) > TOKENS_MAX:
                raise too_long(index, f"{len(encoding.ids)} tokens")
        vectors = np.empty((len(texts), DIMENSIONS), "<f4")

        def run(rows: list[int]) -> None:
            with self._runs:
                if client is not None and has_left(client):
                    raise ClientGone
                vectors[rows] = _vectors(self._session, [encodings[row] for row in rows])

        plan = self._plan(encodings)
        if len(plan) == 1:
            run(plan[0])
        else:
            with ThreadPoolExecutor(self._threads) as pool:
                list(pool.map(run, plan))
        return vectors, [len(encoding.ids) for encoding in encodings]

    def _load(self) -> None:
        with self._lock:
            if self._session is not None:
                return
            tokenizer = Tokenizer.from_file(os.path.join(self._directory, "tokenizer.json"))
            # The settings in the model's file truncate and pad every text to 128 tokens, so both are disabled.
            tokenizer.no_truncation()
            tokenizer.no_padding()
            options = onnxruntime.SessionOptions()
            # A run with two threads takes twice the CPU time but is only a third faster. Each run therefore uses one
            # thread, and several runs share the cores.
            options.intra_op_num_threads = 1
            options.inter_op_num_threads = 1
            # The memory arena of ONNX Runtime would never free memory. Each thread would hold as much as its longest text has needed.
            options.enable_cpu_mem_arena = False
            self._tokenizer = tokenizer
            session = onnxruntime.InferenceSession(
                os.path.join(self._directory, "model.onnx"), options, providers=["CPUExecutionProvider"]
            )
            self._batch_texts = self._measure_batch(session)
            self._session = session

    def _measure_batch(self, session: onnxruntime.InferenceSession) -> int:
        """
        Returns the batch size: 1, unless a test on this machine shows that batches give bit-identical vectors.

        A batch with more rows may use another float32 multiplication kernel, which rounds differently.
        """
        encodings = self._tokenizer.encode_batch(list(_CHECK) * 5)
        alone = np.concatenate([_vectors(session, [encoding]) for encoding in encodings])
        for size in (2, 5, len(encodings)):
            if not np.array_equal(_vectors(session, encodings[:size]), alone[:size]):
                return 1
        return BATCH_TEXTS_MAX

    def _plan(self, encodings: list[Encoding]) -> list[list[int]]:
        """Groups texts of similar length into batches. Each batch is a list of indexes."""
        batches: list[list[int]] = []
        for row in sorted(range(len(encodings)), key=lambda row: len(encodings[row].ids)):
            width = len(encodings[row].ids)
            full = not batches or len(batches[-1]) == self._batch_texts
            if full or (len(batches[-1]) + 1) * width > BATCH_TOKENS_MAX:
                batches.append([])
            batches[-1].append(row)
        return batches


def _vectors(session: onnxruntime.InferenceSession, encodings: list[Encoding]) -> np.ndarray:
    shape = (len(encodings), max(len(encoding.ids) for encoding in encodings))
    ids, mask = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    for row, encoding in enumerate(encodings):
        ids[row, : len(encoding.ids)] = encoding.ids
        mask[row, : len(encoding.ids)] = 1
    feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    (states,) = session.run(None, feeds)
    # Mean over the tokens of each text, without its padding. A sum that includes padding would round differently.
    rows = [states[row, : len(encoding.ids)].mean(axis=0) for row, encoding in enumerate(encodings)]
    return np.stack([row / np.linalg.norm(row) for row in rows]).astype("<f4")


def too_long(index: int, size: str) -> ApiError:
    message = f"Input {index} has {size}; {MODEL} accepts at most {TOKENS_MAX} tokens."
    return ApiError("context_length_exceeded", message, param="input", index=index)


def answer(request: dict, embedder: Embedder, client: socket.socket | None) -> dict:
    model = request.get("model")
    if model != MODEL:
        message = f"The model {str(model)[:100]!r} is not available for embeddings. Use {MODEL}."
        raise ApiError("model_not_found", message, status=404, param="model")
    encoding = request.get("encoding_format", "float")
    if encoding not in ("float", "base64"):
        raise ApiError("invalid_value", "encoding_format must be 'float' or 'base64'.", param="encoding_format")
    if request.get("dimensions") not in (None, DIMENSIONS):
        raise ApiError("unsupported_value", f"dimensions must be {DIMENSIONS}, the size of the vectors of {MODEL}.", param="dimensions")
    vectors, tokens = embedder.embed(_texts(request.get("input")), client)
    data = [
        # `tokens` extends the API: a call may batch texts of several callers, and each is charged its own tokens.
        {"object": "embedding", "index": index, "embedding": _wire(vector, encoding), "tokens": tokens[index]}
        for index, vector in enumerate(vectors)
    ]
    return {
        "object": "list",
        "data": data,
        "model": MODEL,
        "usage": {"prompt_tokens": sum(tokens), "total_tokens": sum(tokens)},
    }


def _texts(value: object) -> list[str]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise ApiError("invalid_type", "input must be a string or a list of strings.", param="input")
    if len(texts) > INPUTS_MAX:
        raise ApiError("array_above_max_length", f"input may have at most {INPUTS_MAX} strings.", param="input")
    for index, text in enumerate(texts):
        if not text:
            raise ApiError("empty_string", f"Input {index} is empty.", param=f"input[{index}]")
    # JSON can contain half of a surrogate pair, which is no valid text, so it is replaced.
    return [text.encode("utf-8", "replace").decode() for text in texts]


def _wire(vector: np.ndarray, encoding: str) -> str | list[float]:
    return base64.b64encode(vector.tobytes()).decode() if encoding == "base64" else vector.tolist()

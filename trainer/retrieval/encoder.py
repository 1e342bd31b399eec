"""An encoder: texts in, vectors of length 1 out. transformers and torch are imported here, and nowhere beside it.

N texts, D numbers of each.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import normalize
from transformers import AutoModel, AutoTokenizer

from trainer.config.files import HUB_ID
from trainer.config.model_folder import model_faults, read_object, tokenizer_faults
from trainer.errors import ConfigError, ModelError
from trainer.model_path import UNREADABLE, local_path, reason
from trainer.quiet import without_bars
from trainer.retrieval.corpus import DIGEST_CHARACTERS
from trainer.retrieval.kinds import KINDS, MOST_TOKENS

Vectors = np.ndarray[Any, np.dtype[np.float32]]
BATCH = 64  # texts in a pass
_POOLER = "pooler."  # a layer behind what is used here; without weights of its own it is drawn anew each time
# Of a configuration: names and versions, which change no number.
_NO_PART = frozenset({"_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version"})
_LAYOUT = "give a folder with config.json, weights and tokenizer, such as a copy of intfloat/e5-base-v2"
_OWN_CODE = "its architecture is code in its folder, and an encoder's code is never run"
_KNOWN = "give an encoder like e5, bge or contriever"
_SHOWN = 60  # characters of a text, in a message


class Encoder:
    """A model of queries and passages, in fp32. One thread at a time."""

    def __init__(self, path: str, kind: str, device: str = "cpu") -> None:
        """Of a folder or hub name, as one of KINDS. Raises ModelError; ConfigError for another device than there is."""
        self.name, self.kind = os.path.basename(path.rstrip("/")) or path, kind
        self._rules, self._device = KINDS[kind], _device(device)
        _require_folder(path)
        _require_pooling(path, kind)
        self._model, self._tokenizer = _loaded(path)
        self._most = min(MOST_TOKENS, getattr(self._model.config, "max_position_embeddings", MOST_TOKENS))
        self.digest = self._digest()
        self._model.to(self._device)
        self.width: int = self._model.config.hidden_size  # D

    def queries(self, texts: Sequence[str]) -> Vectors:
        """Of shape [N, D]. Raises ModelError where a number is not finite."""
        return self._vectors(texts, self._rules.query)

    def passages(self, texts: Sequence[str]) -> Vectors:
        """Of shape [N, D]. Raises ModelError where a number is not finite."""
        return self._vectors(texts, self._rules.passage)

    def _vectors(self, texts: Sequence[str], before: str) -> Vectors:
        found = np.empty((len(texts), self.width), np.float32)
        if not texts:
            return found
        said = [before + text for text in texts]
        ids = self._tokenizer(said, truncation=True, max_length=self._most)["input_ids"]
        order = sorted(range(len(texts)), key=lambda row: len(ids[row]))  # little padding in a pass
        for start in range(0, len(order), BATCH):
            rows = order[start : start + BATCH]
            found[rows] = self._pass([ids[row] for row in rows])
        if not (fine := np.isfinite(found).all(axis=1)).all():
            text = said[int(fine.argmin())]
            raise ModelError(
                f"the encoder {self.name} gives numbers that are not finite for {text[:_SHOWN]!r}",
                hint="are its weights whole? copy the folder again",
            )
        return found

    @torch.inference_mode()
    def _pass(self, ids: list[list[int]]) -> Vectors:
        longest = max(map(len, ids))
        ids_BT = torch.full((len(ids), longest), self._tokenizer.pad_token_id or 0)
        mask_BT = torch.zeros_like(ids_BT)
        for row, each in enumerate(ids):
            ids_BT[row, : len(each)] = torch.tensor(each)
            mask_BT[row, : len(each)] = 1
        ids_BT, mask_BT = ids_BT.to(self._device), mask_BT.to(self._device)
        hidden_BTD = self._model(input_ids=ids_BT, attention_mask=mask_BT).last_hidden_state
        if self._rules.pooling == "cls":
            pooled_BD = hidden_BTD[:, 0]
        else:
            kept_BTD = hidden_BTD.masked_fill(~mask_BT[..., None].bool(), 0.0)
            pooled_BD = kept_BTD.sum(1) / mask_BT.sum(1, keepdim=True).clamp(min=1)
        vectors: Vectors = normalize(pooled_BD, dim=-1).cpu().numpy()
        return vectors

    def _digest(self) -> str:
        """Of all that decides about a vector: weights, configuration, tokenizer, and what this file does with them."""
        sha = hashlib.sha256()
        config = {key: value for key, value in self._model.config.to_diff_dict().items() if key not in _NO_PART}
        for part in (self._rules, self._most, json.dumps(config, sort_keys=True, default=str)):
            sha.update(f"{part}\n".encode())
        sha.update(self._tokenizer.backend_tokenizer.to_str().encode())
        for name, weight in sorted(self._model.state_dict().items()):
            if not name.startswith(_POOLER):
                sha.update(f"{name} {tuple(weight.shape)}\n".encode())
                sha.update(weight.contiguous().numpy())
        return sha.hexdigest()[:DIGEST_CHARACTERS]


def _loaded(path: str) -> tuple[Any, Any]:
    """Model and tokenizer. Raises ModelError."""
    folder = local_path(path)
    try:
        with without_bars():
            tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
            model, info = AutoModel.from_pretrained(folder, trust_remote_code=False, output_loading_info=True)
    except UNREADABLE as error:
        if "trust_remote_code" in str(error):
            raise ModelError(f"the encoder {path} can't be used: {_OWN_CODE}", hint=_KNOWN) from error
        raise ModelError(
            f"the encoder {path} cannot be loaded: {reason(error)}",
            hint=_LAYOUT,
        ) from error
    missing = sorted(name for name in info["missing_keys"] if not name.startswith(_POOLER))
    unfit = (
        "is one half of DPR, which has a model for queries and another for passages"
        if model.config.model_type == "dpr"
        else "is an encoder and a decoder"
        if model.config.is_encoder_decoder
        else f"has no weights for {missing[0]}"
        if missing
        else "has a tokenizer that is not one of the library tokenizers"
        if not tokenizer.is_fast
        else None
    )
    if unfit:
        raise ModelError(f"the encoder {path} can't be used: it {unfit}", hint=_KNOWN)
    return model.float().eval(), tokenizer


def _require_folder(path: str) -> None:
    """Raises ModelError for a folder that can't be loaded, as far as its names and headers say, and for no folder."""
    folder = Path(local_path(path))
    if folder.is_dir():
        for said, _ in (*model_faults(folder), *tokenizer_faults(folder)):
            raise ModelError(f"the encoder {path} {said}", hint=_LAYOUT)
    elif folder.exists() or not HUB_ID.fullmatch(path):
        raise ModelError(f"the encoder {path} is neither a folder here nor a name on the hub", hint=_LAYOUT)


def _require_pooling(path: str, kind: str) -> None:
    """Raises ModelError where the folder itself, by a file of sentence-transformers, asks for another pooling."""
    file = Path(os.path.expanduser(path)) / "1_Pooling" / "config.json"
    try:
        said = read_object(file)
    except (OSError, ValueError):
        return
    names = {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token"}
    asked = [pooling for pooling, name in names.items() if said.get(name) is True]
    if asked and KINDS[kind].pooling not in asked:
        raise ModelError(
            f"the encoder {path} is not of kind {kind}: its {file.parent.name}/{file.name} asks for {asked[0]} pooling",
            hint="--encoder-kind or retriever.encoder_kind says which it is",
        )


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(
            f"--device {name} cannot be used: {str(error).splitlines()[0]}", hint="give cpu, cuda or cuda:1"
        ) from error
    return device

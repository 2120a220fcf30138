"""Models by name, by size and from files."""

from layoutopt.costmodel.models.catalog import load_model, match_name, model_names, nearest_names
from layoutopt.costmodel.models.files import load_model_file, resolve_model
from layoutopt.costmodel.models.huggingface import model_from_config
from layoutopt.costmodel.models.sizes import find_model, model_of_size

__all__ = [
    "find_model",
    "load_model",
    "load_model_file",
    "match_name",
    "model_from_config",
    "model_names",
    "model_of_size",
    "nearest_names",
    "resolve_model",
]

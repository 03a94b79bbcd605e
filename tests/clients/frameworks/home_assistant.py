"""Home Assistant's own Wyoming integration, out of its wheel, without the rest of Home Assistant.

The release needs Python 3.14 and a hundred packages; the classes that talk to a Wyoming server need neither. What they import
of Home Assistant is its real data classes, and stand-ins for the base classes that tie an entity to a running instance.
"""

import importlib.abc
import importlib.util
import re
import sys
import types
import typing
import zipfile
from dataclasses import dataclass
from pathlib import Path

import typing_extensions

PACKAGE = "homeassistant"
# Loaded as they are.
REAL = {
    f"{PACKAGE}.components.wyoming.{name}" for name in ["const", "data", "error", "models", "coordinator", "stt", "tts"]
} | {f"{PACKAGE}.components.{name}" for name in ["stt.const", "stt.models", "tts.models"]}


class StandIn:
    """Stands in for the base class of an entity, and for whatever else belongs to a running instance."""

    def __init__(self, *_, **__) -> None:
        pass


class HomeAssistantError(Exception):
    def __init__(self, *arguments, translation_placeholders=None, **_):
        super().__init__(*arguments, translation_placeholders)


@dataclass
class TTSAudioRequest:
    language: str
    options: dict
    message_gen: typing.AsyncGenerator


@dataclass
class TTSAudioResponse:
    extension: str
    data_gen: typing.AsyncGenerator


class Anything(types.ModuleType):
    """A module of stand-ins: classes, which may have parameters, and modules."""

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        if name.islower():
            return importlib.import_module(f"{self.__name__}.{name}")
        stand_in = type(name, (StandIn,), {"__class_getitem__": classmethod(lambda cls, _: cls)})
        setattr(self, name, stand_in)
        return stand_in


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, wheel: Path) -> None:
        self._wheel = zipfile.ZipFile(wheel)

    def find_spec(self, name, path, target=None):
        if name.split(".")[0] == PACKAGE:
            return importlib.util.spec_from_loader(name, self, is_package=name not in REAL)
        return None

    def create_module(self, spec):
        return None if spec.name in REAL else Anything(spec.name)

    def exec_module(self, module) -> None:
        name = module.__name__
        if name in REAL:
            exec(compile(self._source(name), f"{name} of the wheel", "exec"), module.__dict__)
        elif name == f"{PACKAGE}.const":
            module.Platform = types.SimpleNamespace(STT="stt", TTS="tts")
        elif name == f"{PACKAGE}.core":
            module.callback = lambda function: function
        elif name == f"{PACKAGE}.exceptions":
            module.HomeAssistantError = HomeAssistantError
        elif name == f"{PACKAGE}.components.stt":
            self._adopt(module, ["const", "models"])
        elif name == f"{PACKAGE}.components.tts":
            self._adopt(module, ["models"])
            module.ATTR_AUDIO_OUTPUT, module.ATTR_VOICE = "audio_output", "voice"
            module.TTSAudioRequest, module.TTSAudioResponse = TTSAudioRequest, TTSAudioResponse

    def _adopt(self, module, parts: list[str]) -> None:
        for part in parts:
            real = importlib.import_module(f"{module.__name__}.{part}")
            module.__dict__.update({name: value for name, value in vars(real).items() if not name.startswith("_")})

    def _source(self, name: str) -> str:
        source = self._wheel.read(f"{name.replace('.', '/')}.py").decode()
        # What newer versions of Python write without parentheses, and their statement for aliases.
        source = re.sub(r"except (\w+(?:, \w+)+):", r"except (\1):", source)
        source = re.sub(r"^type (\w+) = ", r"\1 = ", source, flags=re.MULTILINE)
        return f"from __future__ import annotations\n{source}" if "from __future__" not in source else source


def load(folder: str) -> types.SimpleNamespace:
    """The classes of the integration, from the wheel in a folder."""
    [wheel] = Path(folder).glob("homeassistant-*.whl")
    if not hasattr(typing, "override"):
        typing.override = typing_extensions.override
    sys.meta_path.insert(0, Finder(wheel))
    from homeassistant.components import stt, tts
    from homeassistant.components.wyoming.data import WyomingService
    from homeassistant.components.wyoming.stt import WyomingSttProvider
    from homeassistant.components.wyoming.tts import WyomingTtsProvider

    return types.SimpleNamespace(
        stt=stt, tts=tts, Service=WyomingService, Stt=WyomingSttProvider, Tts=WyomingTtsProvider, Error=HomeAssistantError
    )

"""A loaded program: compiled bytes and weights bound to a device, callable on buffer views."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import iree.runtime as iree

from turbine import errors
from turbine.runtime import device as devices

Providers = Callable[[], list[Any]]


class Executable:
    """One VM context and one entry point. Calls from several threads take turns."""

    def __init__(
        self, code: memoryview, driver: str, providers: Providers, function: str = "main"
    ) -> None:
        self.device = devices.device(driver)
        self._code = code
        self._providers = providers
        self._name = function
        self._lock = threading.Lock()
        self._load()

    def invoke(self, arguments: Sequence[Any], result_count: int) -> Any:
        """Call with buffer views and ints; gives back the list of results.

        A failed call leaves IREE's state undefined, so the program is loaded anew after one.
        """
        inputs = iree.VmVariantList(len(arguments))
        for argument in arguments:
            if isinstance(argument, int):
                inputs.push_int(argument)
            else:
                inputs.push_ref(argument)
        results = iree.VmVariantList(result_count)
        with self._lock:
            try:
                self._context.invoke(self._function, inputs, results)
            except (RuntimeError, ValueError, IndexError) as error:
                self._load()
                raise errors.RunError(
                    f"the compiled program failed: {str(error).splitlines()[0]}",
                    hint="the program was loaded anew; state it kept between calls is reset",
                ) from error
        return results

    def reset(self) -> None:
        """Put the program's state back to what it was when it was loaded."""
        with self._lock:
            self._load()

    def _load(self) -> None:
        instance = devices.instance()
        try:
            module = iree.VmModule.wrap_buffer(instance, self._code)
            modules = [iree.create_hal_module(instance, self.device)]
            providers = self._providers()
            if providers:
                modules.append(iree.create_io_parameters_module(instance, *providers))
            self._context = iree.VmContext(instance, [*modules, module])
        except (RuntimeError, ValueError, IndexError, KeyError) as error:
            raise errors.ArtifactVersionError(
                f"IREE {iree.version.VERSION} could not load the program: {error}",
                hint="compile the model again with the installed versions",
            ) from error
        self._function = module.lookup_function(self._name)
        if self._function is None:
            raise errors.ArtifactError(
                errors.unknown("entry point", self._name, module.function_names)
            )

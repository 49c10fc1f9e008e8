"""The docstrings say `Example:`; Griffe renders what follows `Examples:` as code."""

import griffe


class Examples(griffe.Extension):
    def on_instance(self, *, obj, **kwargs):
        if obj.docstring is not None:
            obj.docstring.value = obj.docstring.value.replace("\nExample:\n", "\nExamples:\n")

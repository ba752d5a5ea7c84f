"""The same records with their texts as Arrow arrays, copied many at a time."""

from functools import cached_property

import numpy as np
import pyarrow as pa

from audit.decode import arrow_spans
from audit.decode.records import Records
from audit.decode.spans import Bytes, ascending
from storage.formats.scan import Ints


class ArrowRecords(Records):
    @cached_property
    def properties(self) -> pa.Array:
        """The properties, as stored."""
        return arrow_spans.slices(self._raw, self._properties)

    def _joined_properties(self) -> tuple[Bytes, Ints]:
        bounds = np.frombuffer(self.properties.buffers()[1], np.int32)[: len(self) + 1].astype(
            np.int64
        )
        held = self.properties.buffers()[2]
        data = np.frombuffer(held, np.uint8)[: bounds[-1]] if held else np.empty(0, np.uint8)
        return data, bounds

    def texts(self, name: str) -> pa.Array:
        """The values of a property."""
        found = self.items[name]
        return arrow_spans.strings(
            arrow_spans.slices(self.items.data, ascending(found)), found[1] > 0
        )

    @cached_property
    def topic_array(self) -> pa.DictionaryArray:
        found = arrow_spans.slices(self._raw, self._topics)
        return arrow_spans.strings(found).dictionary_encode()

    @cached_property
    def numbered_topics(self) -> tuple[list[str], Ints]:
        topics = self.topic_array
        return topics.dictionary.to_pylist(), topics.indices.to_numpy()

    def bodies(self, some: Ints | slice = slice(None)) -> pa.Array:
        """The bodies of these records, as bytes."""
        begins, ends = self._bodies
        return arrow_spans.slices(self._raw, (begins[some], ends[some]))

"""Searching Chinese: by pairs of characters, in the index and in the browser.

Sphinx cuts Chinese into words for the index only, with a dictionary. What a reader types stays one long word, which is
found only if the dictionary cut the text at the same places. Pairs need no dictionary: 注意力 is 注意 and 意力, and the
search finds pages that have both.
"""

from __future__ import annotations

import re

from sphinx.search.zh import SearchChinese

CHINESE = "\u3400-\u4dbf\u4e00-\u9fff"
WORDS = re.compile(rf"[{CHINESE}]+|[^\W{CHINESE}]+")


class SearchChinesePairs(SearchChinese):
    # Latin words are stemmed as English. Sphinx 9.0 makes the stemmer's name in JavaScript from this one, and has no
    # ChineseStemmer.
    language_name = "English"
    js_splitter_code = """
var splitQuery = (query) => {
  const runs = query.match(/[CHINESE]+|(?:(?![CHINESE])[\\p{Letter}\\p{Number}_])+/gu) || [];
  return runs.flatMap((run) => {
    if (run.length < 3 || !/[CHINESE]/.test(run)) return [run];
    return Array.from({ length: run.length - 1 }, (_, at) => run.slice(at, at + 2));
  });
};
""".replace("CHINESE", CHINESE)

    def split(self, input: str) -> list[str]:  # noqa: A002  # Sphinx's name
        words: list[str] = []
        for run in WORDS.findall(input):
            if re.match(rf"[{CHINESE}]", run):
                words += [run[at : at + 2] for at in range(len(run) - 1)] or [run]
            else:
                words.append(run)
                self.latin_terms.add(run)
        return words

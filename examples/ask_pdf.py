"""Ask a question about a PDF: find the passages that may answer it, then quote the answer.

    pip install pypdf
    python examples/ask_pdf.py report.pdf "Who chaired the meeting?" --model deepset/bert-base-cased-squad2

A PDF is long and a question-answering model reads a few hundred words at a time, so the pages are ranked first, by
meaning, and only the best are read closely.
"""

from __future__ import annotations

import argparse

from pypdf import PdfReader

import bertie
from bertie.answers import AnswerResult


def main(file: str, question: str, model: str, pages: int) -> tuple[int, AnswerResult] | None:
    texts = [" ".join((page.extract_text() or "").split()) for page in PdfReader(file).pages]
    numbers = [number for number, text in enumerate(texts) if text]
    if not numbers:
        print(f"{file}: there is no text in it. A scanned PDF needs text recognition first.")
        return None
    ranked = bertie.rerank(question, [texts[number] for number in numbers], top_k=pages, long="windows")
    answers = bertie.answer([(question, one.text) for one in ranked], model=model)
    found = [(numbers[one.index] + 1, one_answer) for one, one_answer in zip(ranked, answers, strict=True)]
    page, best = max(found, key=lambda one: one[1].best.score if one[1].best else 0.0)
    print(f"page {page}: {best.best.text if best.best else 'no answer found'}")
    return page, best


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("question")
    parser.add_argument("--model", default="deepset/bert-base-cased-squad2")
    parser.add_argument("--pages", type=int, default=3, help="how many pages are read closely")
    main(**vars(parser.parse_args()))

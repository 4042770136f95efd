"""A bot that answers questions from a list of questions and answers, behind FastAPI.

    pip install 'bertie[serve]'
    uvicorn examples.faq_bot:app
    curl -s localhost:8000/ask -H 'content-type: application/json' -d '{"question": "Is there a free trial?"}'

Questions are compared by meaning, so the words need not be the same. A question that nothing here resembles is not
answered: better no answer than a wrong one.
"""

from __future__ import annotations

from fastapi import FastAPI
from pydantic import BaseModel

import bertie

FAQ = {
    "How do I reset my password?": "Choose “Forgot password” on the sign-in page.",
    "Can I try it for free?": "Yes, for thirty days, without a credit card.",
    "How can I cancel?": "Under Settings → Plan. It ends with the month that is paid.",
    "Where is my data stored?": "In Frankfurt, encrypted, with a copy in Dublin.",
}
LEAST = 0.45  # a cosine below this is another topic

embedder = bertie.Embedder()
questions = list(FAQ)
vectors = embedder.embed(questions)
app = FastAPI(title="FAQ")


class Question(BaseModel):
    question: str


@app.post("/ask")
def ask(asked: Question) -> dict[str, str | float | None]:
    """FastAPI runs this in a thread, so a slow question does not hold up the others."""
    scores = embedder.similarity(embedder.embed([asked.question]), vectors)[0]
    best = int(scores.argmax())
    score = round(float(scores[best]), 3)
    if score < LEAST:
        return {"answer": None, "matched": None, "score": score}
    return {"answer": FAQ[questions[best]], "matched": questions[best], "score": score}

"""What int8 and fp8 are fitted on when nothing else is given: a page of prose on many subjects, and for int8 also texts
unlike it, in other scripts and in none, and rows of ids from all over the vocabulary."""

from __future__ import annotations

import random

CALIBRATION: tuple[str, ...] = (
    "The ferry left the harbour an hour late because the crane that loads the mail had lost a bolt.",
    "How do I return a pair of shoes that I bought online?",
    "Boil the lentils for twenty minutes, drain them, and stir in the onions while they are still hot. Salt comes"
    " last, since it makes the skins tough; a spoon of vinegar at the table brings everything together.",
    "In 1911 the town had two bakeries, one school and no electric light.",
    "The committee voted 7 to 4 to postpone the decision until the audit is published.",
    "A function that calls itself needs a case in which it does not.",
    "Our quarterly revenue rose by 12.5% to $48.3 million, while costs stayed flat; the board expects the margin "
    "to shrink next year as energy prices climb.",
    "Rain.",
    "She had kept the letters in a biscuit tin under the stairs, sorted by year and then by the colour of the "
    "ink, and when her brother asked for them she pretended, for a whole summer, that they had been lost in the "
    "move.",
    "Patients who took the drug slept longer, but woke more often; the difference was not significant (p = 0.21).",
    "best budget phone with good camera 2024",
    "The glacier has retreated four kilometres since the first photographs were taken, leaving a lake the colour "
    "of milk.",
    "Is it cheaper to repair the boiler or to replace it?",
    "The defendant shall, within thirty days of receipt of this notice, either remedy the breach or state in "
    "writing why no breach has occurred.",
    "Light bends when it passes from air into water, which is why a straw in a glass looks broken.",
    "He scored twice in the first half, missed a penalty in the second, and was carried off with a sprained ankle.",
    "TypeError: unsupported operand type(s) for +: 'int' and 'str' on line 42",
    "Whales breathe air. Fish do not. Both move their tails, one up and down, the other from side to side.",
    "The hotel was clean and the staff friendly, but the walls are thin: we heard every word of our neighbours' "
    "quarrel. Breakfast was included; the coffee should not have been.",
    "To whom it may concern: I am writing to recommend Ms. Adeyemi for the position of head gardener.",
    "Mercury's day is longer than its year, if by a day one means the time from one noon to the next.",
    "The new line will connect Porto, Coimbra and Lisbon in under ninety minutes, according to the ministry.",
    "Water expands as it freezes; that is why pipes burst in winter and why ice floats on ponds, so that fish "
    "survive beneath it.",
    "Please find attached the minutes of Tuesday's meeting. Corrections by Friday, please.",
    "A sonnet has fourteen lines. Its turn comes after the eighth, or just before the end.",
    "Three men and a dog waited on the platform. The train was full, so they waited for the next, which did not come.",
    "Inflation fell to 2.1 percent in March, the lowest reading in three years, and bond yields followed.",
    "What is the capital of Burkina Faso?",
    "Insulin lets sugar pass from the blood into cells. Without it the sugar stays where it is, the cells starve,"
    " and the body begins to burn its own fat and muscle instead.",
    "The river was lower than anyone remembered. Boys walked across it with their shoes around their necks.",
    "Install the package, restart the service, and check the log for errors before you open the port.",
    "not worth the money!!! broke after two days, seller never answered",
    "Under the treaty of 1648 each prince could choose the religion of his lands, and a subject who disagreed was"
    " free to sell his house and leave.",
    "The violin is tuned in fifths; the guitar, except for one string, in fourths.",
    "Bees tell each other where flowers are by dancing. The angle of the dance is the angle to the sun; its "
    "length is the distance.",
    "Dr. Lindqvist was born in Uppsala and studied chemistry at Heidelberg before she joined the institute in Kyoto.",
    "You can't have your cake and eat it.",
    "The parcel was delivered to a neighbour at number 17 on 3 May at 14:06.",
    "Concrete is strong when pressed and weak when pulled, so builders lay steel bars in it where it will be "
    "stretched.",
    "Although the play closed after nine performances, two of its songs are still sung in schools, usually by "
    "people who have never heard of it.",
    "Who wrote the music for the film, and was it recorded in one take?",
    "The algorithm sorts the list in place, swaps equal elements at most once, and needs no more memory than a "
    "handful of counters, however long the list becomes.",
    "Moss grows on the side of the tree that stays damp, which is not always the north.",
    "The minister denied on Thursday that she had met the contractor before the tender was announced, and said "
    "that she would publish her diary.",
    "Two trains leave at the same time, one at 80 km/h, the other at 95; after how many minutes are they 30 km apart?",
    "My grandmother's soup needs a day. The bones go in at dawn, the carrots at noon, and nobody lifts the lid "
    "until she says so.",
    "Volcanic soil is fertile because ash weathers quickly and gives up its potassium and phosphorus to plants.",
    "The museum opens at ten, except on Mondays.",
)

UNUSUAL: tuple[str, ...] = (
    "Привет! Сегодня в Москве хорошая погода.",
    "Поезд опоздал на двадцать минут.",
    "Καλημέρα, τι κάνεις σήμερα;",
    "Ο ήλιος λάμπει πάνω από τη θάλασσα.",
    "مرحبا بك في المكتبة الجديدة.",
    "القطار يصل في المساء.",
    "שלום, מה שלומך היום?",
    "הספרייה סגורה בשבת.",
    "नमस्ते, आप कैसे हैं?",
    "आज मौसम अच्छा है।",
    "สวัสดีตอนเช้า",
    "วันนี้อากาศดี",
    "안녕하세요, 오늘 날씨가 좋네요.",
    "기차가 늦었습니다.",
    "今日はとても良い天気ですね。",
    "電車が遅れています。",
    "今天天气很好，我们去公园吧。",
    "图书馆星期一不开门。",
    "Grüße aus Köln: schöne Straßen!",
    "Der Zug fährt um acht Uhr ab.",
    "¿Dónde está la biblioteca?",
    "Où est passé le garçon?",
    "வணக்கம், எப்படி இருக்கிறீர்கள்?",
    "გამარჯობა, როგორ ხარ?",
    "😀😂🎉 🚀👍🏽",
    "lol 😂😂 omg!!! #fail @you",
    "3.14159 2718281828 1,000,000",
    "0049 30 1234567",
    "def f(x): return {k: v for k, v in x.items()}",
    "SELECT * FROM t WHERE a >= 10;",
    "!!! ??? ... ---",
    "[]{}<>/|@#$%^&*",
    "ok",
    "",
    "b",
    "42",
)


def vocabulary_rows(vocab_size: int, first: int, last: int) -> list[list[int]]:
    """Rows of ids from all over a vocabulary, short and long, between a first and a last special token."""
    chance = random.Random(0)
    lengths = (1, 1, 1, 1, 2, 3, 5, 8, 20, 20, 60, 60)
    return [[first, *(chance.randrange(vocab_size) for _ in range(length)), last] for length in lengths]

"""Raw text to what a BERT is pretrained on."""

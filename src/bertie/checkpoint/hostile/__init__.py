"""What stands between us and files that lie: everything a stranger's file claims is checked here before it is believed.

Readers of the formats (safetensors.py, torch_bin.py, tensorflow/) may skip this folder. A damaged or hostile file gives
`CorruptCheckpoint`, with a name and a reason; it runs nothing, leads nowhere else, and costs time and memory in
proportion to its own size.

    paths                 names of files that a file gives us, and what a file of weights may be instead
    safetensors_header    a safetensors header, against the bytes behind it
    torch_archive         the list of members of torch's zip archives, read strictly
    torch_pickle          the pickle inside, read by a machine that can only take notes
    torch_file            both against the bytes that are there
    tensorflow_index      the entries of a TensorFlow index, against each other, and how large it may become

No torch is needed for any of it, so that `bertie inspect` can do without.
"""

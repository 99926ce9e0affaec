"""Even load: gives each rank the number of microbatches with which all ranks finish a step together (`whyidle.share`).

`plan` decides, `meter` measures, `rounds` packs what the ranks tell each other, and `meeting` carries it between them.
"""

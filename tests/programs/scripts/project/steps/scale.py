"""What the project is about, in a package of it."""


class Scaler:
    def __init__(self, factor):
        self.factor = factor

    def scale(self, number):
        scaled = number * self.factor
        return scaled  # @scale

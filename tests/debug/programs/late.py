"""A module that a worker imports when it needs it."""


class Late:
    def work(self, number):
        return number + 1  # @late

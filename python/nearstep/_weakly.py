"""Makes calls that keep no object alive. Used for hooks and callbacks."""

import weakref


def weakly(method, *first):
    """A function that calls the method, with ``first`` before other arguments, as long as its object lives, and then
    returns None.
    """
    reference = weakref.WeakMethod(method)

    def call(*arguments):
        alive = reference()
        return None if alive is None else alive(*first, *arguments)

    return call

# SPDX-License-Identifier: GPL-2.0
"""Objects of ulp.py, and of what is built on it, on the second machine.

Where the hosts are two machines (`scripts/vm run --hosts 2`), End("h2"), File("h2")
and what derives from them are made by a process there, and what one gets is a
Proxy: its attributes, calls and slices are those of the object. Numbers, bytes,
lists, exceptions and the structs of the header cross by value, the rest stays
there. The process lives as long as the one that asks, which may call it from
several threads.
"""

import ctypes
import importlib
import io
import mmap
import os
import pickle
import struct
import subprocess
import sys
import threading
import types

import ulp

# --- what crosses ------------------------------------------------------------------


def struct_of(name, data):
    return ulp.S[name].from_buffer_copy(data)


def array_of(kind, data):
    return (getattr(ctypes, kind) * (len(data) // ctypes.sizeof(getattr(ctypes, kind)))).from_buffer_copy(data)


def seen(num, gid, lid, psn, grant):
    """What an End shows its peer."""
    here = types.SimpleNamespace
    return here(qp=here(num=num), psn=psn, grant=grant, file=here(gid=lambda: here(gid=gid), lid=lambda: lid))


class Pickler(pickle.Pickler):
    def reducer_override(self, obj):
        if SERVER is None and isinstance(obj, ulp.End):
            return seen, (obj.qp.num, bytes(obj.file.gid().gid), obj.file.lid(), obj.psn, obj.grant)
        if isinstance(obj, ctypes.Structure):
            return struct_of, (type(obj).__name__, bytes(obj))
        if isinstance(obj, ctypes.Array):
            return array_of, (obj._type_.__name__, bytes(obj))
        if isinstance(obj, Proxy):
            return lookup, (obj._ref,)
        if SERVER is not None and isinstance(
            obj, (ulp.OnHost, ulp.Cq, ulp.Buffer, ulp.UserBuffer, ulp.Srq, ulp.Qp, mmap.mmap)
        ):
            return Proxy, (SERVER.keep(obj),)
        return NotImplemented


def write(stream, value):
    data = io.BytesIO()
    Pickler(data, pickle.HIGHEST_PROTOCOL).dump(value)
    data = data.getvalue()
    stream.write(struct.pack("!I", len(data)) + data)
    stream.flush()


def read(stream):
    head = stream.read(4)
    if len(head) < 4:
        raise EOFError
    return pickle.loads(stream.read(struct.unpack("!I", head)[0]))


# --- there ---------------------------------------------------------------------------


class Method:
    """An attribute that is called."""


class Server:
    def __init__(self):
        self.objects, self.refs, self.lock = {}, {}, threading.Lock()

    def keep(self, obj):
        with self.lock:
            if id(obj) not in self.refs:
                self.refs[id(obj)] = len(self.objects)
                self.objects[self.refs[id(obj)]] = obj
            return self.refs[id(obj)]

    def do(self, what, target, *args):
        if what == "make":
            module, name, args, kwargs = args
            return getattr(importlib.import_module(module), name)(*args, **kwargs)
        if what == "call":
            name, args, kwargs = args
            return getattr(target, name)(*args, **kwargs)
        if what == "get":
            value = getattr(target, *args)
            return Method() if callable(value) else value
        if what == "item":
            return target[args[0]]
        if what == "set":
            target[args[0]] = args[1]
            return None
        raise ValueError(what)

    def answer(self, out, number, request):
        try:
            result = (number, True, self.do(*request))
        except OSError as e:
            result = (number, False, OSError(e.errno, e.strerror))
        except Exception as e:
            result = (number, False, RuntimeError(f"there: {type(e).__name__}: {e}"))
        with self.lock_out:
            try:
                write(out, result)
            except Exception as e:
                write(out, (number, False, RuntimeError(f"there: the answer: {type(e).__name__}: {e}")))

    def run(self):
        self.lock_out = threading.Lock()
        out = os.fdopen(os.dup(1), "wb")
        os.dup2(2, 1)
        while True:
            try:
                number, request = read(sys.stdin.buffer)
            except EOFError:
                os._exit(0)
            threading.Thread(target=self.answer, args=(out, number, request), daemon=True).start()


SERVER = None


def lookup(ref):
    return SERVER.objects[ref]


def serve():
    """What the process there does."""
    global SERVER
    SERVER = Server()
    SERVER.run()


# --- here ----------------------------------------------------------------------------


class Client:
    def __init__(self):
        here = os.path.dirname(os.path.abspath(__file__))
        self.process = subprocess.Popen(
            [ulp.PEER, "python3", "-c", f"import sys; sys.path.insert(0, {here!r}); import away; away.serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.lock, self.number, self.waiting, self.over = threading.Lock(), 0, {}, False
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        try:
            while True:
                number, good, value = read(self.process.stdout)
                event, place = self.waiting.pop(number)
                place.append((good, value))
                event.set()
        except (EOFError, OSError):
            self.over = True
            for event, place in list(self.waiting.values()):
                place.append((False, ConnectionError("the second machine's process has ended")))
                event.set()

    def ask(self, *request, seconds=180):
        event, place = threading.Event(), []
        with self.lock:
            self.number += 1
            self.waiting[self.number] = (event, place)
            write(self.process.stdin, (self.number, request))
        if self.over:
            raise ConnectionError("the second machine's process has ended")
        if not event.wait(seconds * ulp.PATIENCE):
            raise TimeoutError(f"the second machine does not answer: {request[0]} {request[2:3]}")
        good, value = place[0]
        if not good:
            raise value
        return value

    def drop(self):
        """Ends the process there; where the machine is gone, what is here of it."""
        self.process.kill()
        self.process.wait()


CLIENT = None


def client():
    global CLIENT
    if CLIENT is None:
        CLIENT = Client()
    return CLIENT


def drop():
    """What was made there is gone; what is made from now on is made by a new process."""
    global CLIENT
    if CLIENT is not None:
        CLIENT.drop()
        CLIENT = None


def make(kind, *args, **kwargs):
    """An object of the class `kind`, there."""
    module = kind.__module__
    if module == "__main__":
        module = os.path.basename(sys.modules[module].__file__).removesuffix(".py")
    return client().ask("make", None, module, kind.__name__, args, kwargs)


class Proxy:
    """An object that is there."""

    def __init__(self, ref):
        self.__dict__["_ref"] = ref
        self.__dict__["_client"] = CLIENT

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        value = self._client.ask("get", self, name)
        if isinstance(value, Method):

            def value(*args, **kwargs):
                return self._client.ask("call", self, name, args, kwargs)

        if isinstance(value, Proxy) or callable(value):
            self.__dict__[name] = value
        return value

    def __setattr__(self, name, value):
        raise AttributeError(f"{name} of an object that is elsewhere")

    def __getitem__(self, key):
        return self._client.ask("item", self, key)

    def __setitem__(self, key, value):
        self._client.ask("set", self, key, value)

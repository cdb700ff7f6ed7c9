"""The Python of docs/cpp-guide.md, beside the C++ program of the same guide."""

import os
import re
import subprocess
import sys
import tempfile
import unittest

from harness import start_server

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
GUIDE = os.path.join(ROOT, "docs/cpp-guide.md")
SECONDS = 60


def block(language, begins):
    with open(GUIDE, encoding="utf-8") as guide:
        blocks = re.findall(rf"```{language}\n(.*?)```", guide.read(), re.DOTALL)
    found = [text for text in blocks if text.startswith(begins)]
    assert len(found) == 1, (language, begins, len(found))
    return found[0]


class Guide(unittest.TestCase):
    def setUp(self):
        self.server = start_server("rdzv")
        self.addCleanup(self.server.stop)

    def test_python_is_rank_1_of_the_program(self):
        with tempfile.TemporaryDirectory() as folder:
            source, program = os.path.join(folder, "ranks.cpp"), os.path.join(folder, "ranks")
            with open(source, "w", encoding="utf-8") as file:
                file.write(block("cpp", "#include <rendezvous.hpp>"))
            release = os.path.join(ROOT, "target/release")
            subprocess.run(
                [os.environ.get("CXX", "g++"), "-std=c++17", f"-I{ROOT}/include", source, "-o", program,
                 f"-L{release}", "-lrendezvous", f"-Wl,-rpath,{release}"],
                check=True,
            )
            port = str(self.server.port)
            python = subprocess.Popen(
                [sys.executable, "-c", block("python", "import torch").replace("29500", port)],
                stdout=subprocess.PIPE, text=True,
            )
            cpp = subprocess.run(
                [program, "127.0.0.1", port, "0", "2"], stdout=subprocess.PIPE, text=True, timeout=SECONDS,
            )
            printed, _ = python.communicate(timeout=SECONDS)
        self.assertEqual((python.returncode, printed), (0, "10.0.0.0:4000\n"))
        self.assertEqual(cpp.returncode, 0)
        self.assertEqual(cpp.stdout, "rank 0 sees 10.0.0.0:4000\nrank 0 sees 10.0.0.1:4000\n")

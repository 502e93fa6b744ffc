# Checks in-toto statements: strictly parsed as the protobuf message, then validated. stdin: a list of texts; stdout: for
# each null, or why it was refused. Anything but a refusal ends the program.
import json
import sys

from google.protobuf.json_format import Parse, ParseError
from in_toto_attestation.v1 import statement_pb2
from in_toto_attestation.v1.statement import Statement

answers = []
for text in json.load(sys.stdin):
    try:
        Statement.copy_from_pb(Parse(text, statement_pb2.Statement())).validate()
        answers.append(None)
    except (ParseError, ValueError) as why:
        answers.append(str(why))
json.dump(answers, sys.stdout)

# Checks DSSE envelopes as securesystemslib does by default. stdin: a list of {envelope, pem}; stdout: for each null, or
# why it was refused. Anything but a refusal ends the program.
import json
import sys

from cryptography.hazmat.primitives.serialization import load_pem_public_key
from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import VerificationError
from securesystemslib.signer import SSlibKey

answers = []
for case in json.load(sys.stdin):
    key = SSlibKey.from_crypto(load_pem_public_key(case["pem"].encode()))
    try:
        accepted = Envelope.from_dict(case["envelope"]).verify([key], threshold=1)
        assert list(accepted) == [key.keyid]
        answers.append(None)
    except VerificationError as why:
        answers.append(str(why))
json.dump(answers, sys.stdout)

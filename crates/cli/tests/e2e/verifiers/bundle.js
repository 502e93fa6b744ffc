// Checks Sigstore bundles against public keys by their hint. stdin: a list of {bundle, keys: {hint: pem}}; stdout: for
// each null, or why it was refused. Anything but a refusal ends the program.
const { createPublicKey } = require("node:crypto");
const { readFileSync, writeSync } = require("node:fs");
const { bundleFromJSON } = require("@sigstore/bundle");
const { toSignedEntity, VerificationError, Verifier } = require("@sigstore/verify");

const answers = JSON.parse(readFileSync(0, "utf8")).map(({ bundle, keys }) => {
  const publicKey = (hint) => {
    if (!(hint in keys)) throw new VerificationError({ code: "PUBLIC_KEY_ERROR", message: `key not found: ${hint}` });
    return { publicKey: createPublicKey(keys[hint]), validFor: () => true };
  };
  const trusted = { publicKey, certificateAuthorities: [], timestampAuthorities: [], tlogs: [], ctlogs: [] };
  const verifier = new Verifier(trusted, { tlogThreshold: 0, ctlogThreshold: 0, timestampThreshold: 0 });
  try {
    verifier.verify(toSignedEntity(bundleFromJSON(bundle)));
    return null;
  } catch (why) {
    if (!(why instanceof VerificationError)) throw why;
    return `${why.code}: ${why.message}`;
  }
});
writeSync(1, JSON.stringify(answers));

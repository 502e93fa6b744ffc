//! Receipts: in-toto statements in DSSE envelopes, signed with one Ed25519 key. What is signed is the very bytes of the
//! payload; nobody has to agree on how JSON is written to check them.

use actum_contract::canon;
use actum_contract::digest::Digest;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use ed25519_dalek::{Signature, Signer as _, SigningKey, VerifyingKey};
use serde_json::{Value, json};

pub const STATEMENT_TYPE: &str = "https://in-toto.io/Statement/v1";
pub const PREDICATE_TYPE: &str = "https://actum.dev/run/v1";
/// The receipt of a prediction.
pub const PREDICTION_TYPE: &str = "https://actum.dev/prediction/v1";
pub const PAYLOAD_TYPE: &str = "application/vnd.in-toto+json";

/// Why a receipt is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadReceipt {
    #[error("it is no DSSE envelope: {0}")]
    Envelope(&'static str),
    #[error("its payload is no statement: {0}")]
    Statement(String),
    #[error("it is signed by key {found}, not by {expected}")]
    OtherKey { found: String, expected: String },
    #[error("the signature is wrong")]
    Signature,
}

/// Something a statement is about. Only SHA-2 stands in the digest; BLAKE3 is an annotation, because some verifiers
/// refuse names they do not know.
pub fn subject(name: &str, sha256: Digest, blake3: &str) -> Value {
    json!({"name": name, "digest": {"sha256": sha256.to_hex()}, "annotations": {"blake3": blake3}})
}

pub fn statement(subjects: Vec<Value>, predicate: Value) -> Value {
    statement_of(PREDICATE_TYPE, subjects, predicate)
}

/// The same of another kind.
pub fn statement_of(kind: &str, subjects: Vec<Value>, predicate: Value) -> Value {
    json!({"_type": STATEMENT_TYPE, "subject": subjects, "predicateType": kind, "predicate": predicate})
}

/// The id under which verifiers look a key up: SHA-256 of the canonical form of the key.
pub fn key_id(key: &VerifyingKey) -> String {
    let public = hex::encode(key.as_bytes());
    let shape = json!({"keytype": "ed25519", "keyval": {"public": public}, "scheme": "ed25519"});
    canon::canonical(&shape).map_or_else(|_| String::new(), |text| Digest::sha256(&text).to_hex())
}

/// What is signed.
fn pre_authentication(payload_type: &str, payload: &[u8]) -> Vec<u8> {
    let mut bytes = format!("DSSEv1 {} {payload_type} {} ", payload_type.len(), payload.len()).into_bytes();
    bytes.extend_from_slice(payload);
    bytes
}

/// The envelope around a statement.
pub fn seal(statement: &Value, key: &SigningKey) -> Value {
    let payload = statement.to_string().into_bytes();
    let signature = key.sign(&pre_authentication(PAYLOAD_TYPE, &payload));
    json!({
        "payload": BASE64.encode(&payload),
        "payloadType": PAYLOAD_TYPE,
        "signatures": [{"keyid": key_id(&key.verifying_key()), "sig": BASE64.encode(signature.to_bytes())}],
    })
}

/// An envelope whose parts were taken out, and not yet believed.
#[derive(Debug, Clone, PartialEq)]
pub struct Receipt {
    pub statement: Value,
    pub key_id: String,
    payload: Vec<u8>,
    signature: Vec<u8>,
}

impl Receipt {
    pub fn read(envelope: &Value) -> Result<Self, BadReceipt> {
        let form = BadReceipt::Envelope;
        let text = |value: &Value, what| value.as_str().map(ToOwned::to_owned).ok_or(form(what));
        if envelope["payloadType"] != PAYLOAD_TYPE {
            return Err(form("its payloadType is not application/vnd.in-toto+json"));
        }
        let Some([signed]) = envelope["signatures"].as_array().map(Vec::as_slice) else {
            return Err(form("it has not exactly one signature"));
        };
        let decode = |text: String, what| BASE64.decode(text).map_err(|_| form(what));
        let payload = decode(text(&envelope["payload"], "it has no payload")?, "its payload is not base64")?;
        let signature = decode(text(&signed["sig"], "it has no signature")?, "its signature is not base64")?;
        let statement = canon::parse(&payload).map_err(|e| BadReceipt::Statement(e.message))?;
        for (field, wanted) in [("_type", &[STATEMENT_TYPE][..]), ("predicateType", &[PREDICATE_TYPE, PREDICTION_TYPE])]
        {
            if !wanted.iter().any(|wanted| statement[field] == *wanted) {
                let (found, wanted) = (&statement[field], wanted.join(" or "));
                return Err(BadReceipt::Statement(format!("its {field} is {found}, expected {wanted}")));
            }
        }
        Ok(Self { statement, key_id: text(&signed["keyid"], "it names no key")?, payload, signature })
    }

    /// Whether this key signed it.
    pub fn verify(&self, key: &VerifyingKey) -> Result<(), BadReceipt> {
        let expected = key_id(key);
        if self.key_id != expected {
            return Err(BadReceipt::OtherKey { found: self.key_id.clone(), expected });
        }
        let signature = Signature::from_slice(&self.signature).map_err(|_| BadReceipt::Signature)?;
        let signed = pre_authentication(PAYLOAD_TYPE, &self.payload);
        key.verify_strict(&signed, &signature).map_err(|_| BadReceipt::Signature)
    }

    /// By which the next receipt and the ledger name it.
    pub fn digest(&self) -> Digest {
        Digest::sha256(&self.payload)
    }

    /// Whether it is the receipt of a prediction, not of a run.
    pub fn is_prediction(&self) -> bool {
        self.statement["predicateType"] == PREDICTION_TYPE
    }

    pub fn predicate(&self) -> &Value {
        &self.statement["predicate"]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealed() -> (Value, VerifyingKey) {
        let key = SigningKey::from_bytes(&[7; 32]);
        let subject = subject("workspace", Digest::sha256(b"a"), "b3");
        (seal(&statement(vec![subject], json!({"status": "success"})), &key), key.verifying_key())
    }

    #[test]
    fn what_was_sealed_is_believed() {
        let (envelope, key) = sealed();
        let receipt = Receipt::read(&envelope).unwrap();
        assert_eq!(receipt.verify(&key), Ok(()));
        assert_eq!(receipt.predicate()["status"], "success");
    }

    #[test]
    fn what_was_altered_is_not() {
        let (envelope, key) = sealed();
        let other = SigningKey::from_bytes(&[8; 32]);
        assert!(matches!(
            Receipt::read(&envelope).unwrap().verify(&other.verifying_key()),
            Err(BadReceipt::OtherKey { .. })
        ));
        let mut forged = envelope.clone();
        let payload = BASE64.decode(envelope["payload"].as_str().unwrap()).unwrap();
        let payload = String::from_utf8(payload).unwrap().replace("success", "failure");
        forged["payload"] = json!(BASE64.encode(payload));
        assert_eq!(Receipt::read(&forged).unwrap().verify(&key), Err(BadReceipt::Signature));
        let mut forged = envelope.clone();
        forged["signatures"][0]["sig"] = json!(BASE64.encode([0; 64]));
        assert_eq!(Receipt::read(&forged).unwrap().verify(&key), Err(BadReceipt::Signature));
        let mut forged = envelope.clone();
        forged["signatures"] = json!([envelope["signatures"][0], envelope["signatures"][0]]);
        assert!(matches!(Receipt::read(&forged), Err(BadReceipt::Envelope(_))));
        for field in ["payload", "payloadType", "signatures"] {
            let mut forged = envelope.clone();
            forged[field] = json!(7);
            assert!(Receipt::read(&forged).is_err(), "{field}");
        }
    }

    #[test]
    fn the_key_id_is_the_one_other_tools_compute() {
        // Of the all-zero seed; securesystemslib 1.6.0 gives the same for its public key.
        let key = SigningKey::from_bytes(&[0; 32]).verifying_key();
        assert_eq!(key_id(&key), "4cc3f338069d638e761ed397f5c53df4129a276face46a446c202617331ca1b3");
    }
}

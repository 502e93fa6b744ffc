//! The identity of a folder: a path may name another folder later, a device and inode number name this one.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The device and inode number of a folder.
///
/// Both are written as hexadecimal text, because canonical JSON holds no integers of 64 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FolderId {
    #[serde(with = "hexadecimal")]
    pub device: u64,
    #[serde(with = "hexadecimal")]
    pub inode: u64,
}

mod hexadecimal {
    use super::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    pub(super) fn serialize<S: Serializer>(number: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        format!("{number:x}").serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        let text = String::deserialize(deserializer)?;
        u64::from_str_radix(&text, 16).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::FolderId;

    #[test]
    fn large_numbers_survive_json() {
        let id = FolderId { device: u64::MAX, inode: 0x1f };
        let text = serde_json::to_string(&id).unwrap();
        assert_eq!(text, r#"{"device":"ffffffffffffffff","inode":"1f"}"#);
        assert_eq!(serde_json::from_str::<FolderId>(&text).unwrap(), id);
    }
}

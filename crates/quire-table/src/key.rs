//! Keys of rows: supplied by the publisher, or generated from fields of the message.

use std::fmt;
use std::ops::Deref;

use smallvec::SmallVec;
use xxhash_rust::xxh3::xxh3_128;

use crate::error::{KeyError, TableConfigError};
use crate::fields::Fields;
use crate::index::Spelling;
use quire_expression::message_type::{Arena, Malformed, MessageType, Step, Value};
use quire_expression::unreadable::contained;

/// The longest key, in bytes: a row stores the size of its key in one byte.
pub const KEY_SIZE_MAX: usize = u8::MAX as usize;

/// Characters of a generated key.
const GENERATED_SIZE: usize = 32;

/// The most bytes of key fields that are hashed without an allocation.
const INLINE_SIZE: usize = 128;

/// The source of the keys of a last-value topic.
#[derive(Clone, Debug)]
pub enum KeyRule {
    /// The publisher supplies the key ([`check_supplied_key`]).
    Supplied,
    /// The key is generated from fields of the message.
    Fields(KeyFields),
}

/// The fields from which keys are generated.
#[derive(Clone, Debug)]
pub struct KeyFields {
    message_type: MessageType,
    domain: Box<[u8]>,
    /// The domain with its size, as it is hashed.
    hashed_domain: Box<[u8]>,
    fields: Fields,
}

/// A key, as text.
#[derive(Clone)]
pub struct Key {
    has_missing: bool,
    spelling: Option<Spelling>,
    /// It is moved for each message. So it has room for generated keys, and not for the longest
    /// ones.
    text: SmallVec<[u8; GENERATED_SIZE]>,
}

impl KeyFields {
    /// Keys from these fields, which are written as in filters, in this order. Topics with equal
    /// domains and equal values of the fields have equal keys.
    ///
    /// # Errors
    /// [`TableConfigError`] for messages without fields, for no field, and for a text that is not
    /// the name of a field.
    pub fn new(message_type: MessageType, domain: &str, fields: &[String]) -> Result<Self, TableConfigError> {
        if !message_type.has_fields() {
            return Err(TableConfigError::NoFields { message_type });
        }
        if fields.is_empty() {
            return Err(TableConfigError::EmptyList { list: "key" });
        }
        let mut hashed = Hashed::default();
        hashed.put_sized(domain.as_bytes());
        Ok(KeyFields {
            message_type,
            domain: domain.as_bytes().into(),
            hashed_domain: hashed.bytes().into(),
            fields: Fields::new("key", fields)?,
        })
    }

    /// The fields, as written.
    pub fn fields(&self) -> impl Iterator<Item = &str> {
        self.fields.names()
    }

    /// The list of the fields.
    pub(crate) fn list(&self) -> &Fields {
        &self.fields
    }

    /// The paths of the fields in a message.
    pub fn paths(&self) -> &[Vec<Step>] {
        self.fields.paths()
    }

    /// The domain.
    pub fn domain(&self) -> &[u8] {
        &self.domain
    }

    /// The key of a message: 32 hexadecimal digits. A missing field counts as NULL
    /// ([`Key::has_missing`]). For an array the first element counts, for an object its bytes.
    ///
    /// # Errors
    /// [`Malformed`] when any part of the message is malformed: a record that is cut off after its
    /// key must not replace a sound one.
    pub fn key_of(&self, data: &[u8], arena: &mut Arena) -> Result<Key, Malformed> {
        arena.reset();
        contained(|| {
            let mut spelling = Spelling::Usual;
            let values = self.fields.read_whole(self.message_type, data, arena)?;
            let (hash, has_missing) =
                self.hash_of_values(values, arena, |value| spelling = spelling.max(Spelling::of(value)));
            Ok(Key { has_missing, spelling: Some(spelling), ..Key::generated(hash) })
        })?
    }

    /// The values of the fields of a message.
    pub(crate) fn values_of<'a>(
        &self,
        data: &'a [u8],
        arena: &'a Arena,
    ) -> Result<impl Iterator<Item = Value<'a>>, Malformed> {
        self.fields.read(self.message_type, data, arena)
    }

    /// Whether a key is the one of a message whose fields have these values. Calls `each` with each
    /// value.
    pub(crate) fn has_made<'a>(
        &self,
        key: &[u8],
        values: impl Iterator<Item = Value<'a>>,
        arena: &'a Arena,
        each: impl FnMut(Value<'_>),
    ) -> bool {
        let (hash, _) = self.hash_of_values(values, arena, each);
        key == digits_of(hash)
    }

    #[inline]
    fn hash_of_values<'a>(
        &self,
        values: impl Iterator<Item = Value<'a>>,
        arena: &'a Arena,
        mut each: impl FnMut(Value<'_>),
    ) -> (u128, bool) {
        let mut has_missing = false;
        let texts = values.map(|value| {
            each(value);
            match value.scalar() {
                // An empty text is NULL, so that NULL is the only value of size 0.
                Value::Null => {
                    has_missing = true;
                    &[]
                }
                Value::Compound(raw) => raw,
                // NaN has no text, but it is not a missing value.
                value => arena.text(value).unwrap_or(NAN_TEXT),
            }
        });
        let hash = self.hash_of(texts);
        (hash, has_missing)
    }

    /// The key of a message whose fields have these texts.
    pub(crate) fn key_of_texts(&self, texts: &mut dyn Iterator<Item = &[u8]>) -> Key {
        Key::generated(self.hash_of(texts))
    }

    fn hash_of<'t>(&self, texts: impl Iterator<Item = &'t [u8]>) -> u128 {
        let mut hashed = Hashed::default();
        hashed.put(&self.hashed_domain);
        texts.for_each(|text| hashed.put_sized(text));
        xxh3_128(hashed.bytes())
    }
}

/// The key of a group, whose values have these bytes.
pub(crate) fn key_of_group(values: &[u8]) -> Key {
    Key::generated(xxh3_128(values))
}

/// The key with this number.
pub(crate) fn key_of_hash(hash: u128) -> Key {
    Key::generated(hash)
}

/// The text of a float that is not a number.
const NAN_TEXT: &[u8] = b"NaN";

/// The bytes that are hashed for a key. Few bytes need no allocation.
struct Hashed {
    few: [u8; INLINE_SIZE],
    size: usize,
    /// All bytes, if there are more than a few.
    many: Vec<u8>,
}

impl Default for Hashed {
    fn default() -> Self {
        Hashed { few: [0; INLINE_SIZE], size: 0, many: Vec::new() }
    }
}

impl Hashed {
    /// Adds a size, and the bytes. So two lists of values are equal exactly when these bytes are
    /// equal.
    #[inline]
    fn put_sized(&mut self, bytes: &[u8]) {
        self.put(&(bytes.len() as u64).to_le_bytes());
        self.put(bytes);
    }

    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        match self.few.get_mut(self.size..self.size + bytes.len()) {
            Some(place) if self.many.is_empty() => {
                place.copy_from_slice(bytes);
                self.size += bytes.len();
            }
            _ => self.put_many(bytes),
        }
    }

    #[cold]
    fn put_many(&mut self, bytes: &[u8]) {
        if self.many.is_empty() {
            self.many.extend_from_slice(&self.few[..self.size]);
        }
        self.many.extend_from_slice(bytes);
    }

    fn bytes(&self) -> &[u8] {
        if self.many.is_empty() { &self.few[..self.size] } else { &self.many }
    }
}

impl Key {
    /// The key in these bytes. `None` when they are not a key, or are too long.
    pub fn from_bytes(bytes: &[u8]) -> Option<Key> {
        std::str::from_utf8(bytes).ok()?;
        let is_key = (1..=KEY_SIZE_MAX).contains(&bytes.len());
        is_key.then(|| Key { has_missing: false, spelling: None, text: SmallVec::from_slice(bytes) })
    }

    fn generated(hash: u128) -> Key {
        Key { has_missing: false, spelling: None, text: SmallVec::from_buf(digits_of(hash)) }
    }

    /// The key as text.
    pub fn as_str(&self) -> &str {
        // Both constructors take text only.
        std::str::from_utf8(self).unwrap_or_default()
    }

    /// How a filter finds a record with this key, when the key was generated from a message.
    pub fn spelling(&self) -> Option<Spelling> {
        self.spelling
    }

    /// Whether a field was absent or NULL in the message that this key was generated from.
    pub fn has_missing(&self) -> bool {
        self.has_missing
    }
}

impl Deref for Key {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.text
    }
}

/// A number as hexadecimal digits. Eight digits are made at once, each in a byte of a number.
fn digits_of(hash: u128) -> [u8; GENERATED_SIZE] {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let mut digits = [0; GENERATED_SIZE];
    for (place, shift) in digits.chunks_exact_mut(8).zip([96, 64, 32, 0]) {
        let half_bytes = u64::from((hash >> shift) as u32);
        let half_bytes = (half_bytes | half_bytes << 16) & 0x0000_ffff_0000_ffff;
        let half_bytes = (half_bytes | half_bytes << 8) & 0x00ff_00ff_00ff_00ff;
        let half_bytes = (half_bytes | half_bytes << 4) & 0x0f0f_0f0f_0f0f_0f0f;
        // From 10 on, a digit is a letter: `a` is 39 places after `:`, which follows `9`.
        let letters = (half_bytes + 6 * ONES) >> 4 & ONES;
        place.copy_from_slice(&(half_bytes + 0x30 * ONES + 39 * letters).to_be_bytes());
    }
    digits
}

/// Keys are equal when their texts are.
impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Key {}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({:?})", self.as_str())
    }
}

/// A key that a publisher supplied: 1 to 255 characters, each a letter, a digit, or one of `+ / = -
/// _`.
///
/// # Errors
/// [`KeyError`] for any other key.
pub fn check_supplied_key(key: &[u8]) -> Result<&str, KeyError> {
    if key.is_empty() {
        return Err(KeyError::Empty);
    }
    if key.len() > KEY_SIZE_MAX {
        return Err(KeyError::TooLong { size: key.len() });
    }
    let is_allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"+/=-_".contains(byte);
    match key.iter().position(|byte| !is_allowed(byte)) {
        None => Ok(std::str::from_utf8(key).unwrap_or_default()),
        Some(index) => Err(KeyError::Character { number: index + 1 }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key_of(message_type: MessageType, domain: &str, fields: &[&str], data: &str) -> Key {
        let fields: Vec<String> = fields.iter().map(|field| field.to_string()).collect();
        let fields = KeyFields::new(message_type, domain, &fields).unwrap();
        fields.key_of(data.as_bytes(), &mut Arena::default()).unwrap()
    }

    fn json_key(fields: &[&str], data: &str) -> Key {
        key_of(MessageType::Json, "orders", fields, data)
    }

    #[test]
    fn a_generated_key_is_the_hash_of_the_domain_and_the_values_with_their_sizes() {
        let mut hashed = Vec::new();
        for part in ["orders", "7", "east"] {
            hashed.extend((part.len() as u64).to_le_bytes());
            hashed.extend(part.as_bytes());
        }
        let key = json_key(&["/id", "/region"], r#"{"region":"east","id":7}"#);
        assert_eq!(key.as_str(), format!("{:032x}", xxh3_128(&hashed)));
        let digits = [0, 1, 0x0123_4567_89ab_cdef_fedc_ba98_7654_3210, u128::MAX].map(digits_of);
        let expected =
            [0, 1, 0x0123_4567_89ab_cdef_fedc_ba98_7654_3210, u128::MAX].map(|n: u128| format!("{n:032x}"));
        assert_eq!(digits.map(|digits| String::from_utf8(digits.to_vec()).unwrap()), expected);
        // The log has these keys: they must not change.
        assert_eq!(json_key(&["/id"], r#"{"id":1}"#).as_str(), "a035c3034541c2cc62e1be9f8328c97c");
    }

    #[test]
    fn keys_are_equal_exactly_when_the_texts_of_the_fields_and_the_domains_are() {
        let one = json_key(&["/a", "/b"], r#"{"a":"1","b":"23"}"#);
        assert_eq!(one, json_key(&["/a", "/b"], r#"{"a":1,"b":23}"#));
        assert_eq!(
            one,
            json_key(&["/a", "/b"], r#"{"b":[23,4],"a":1,"c":true}"#),
            "the first element counts"
        );
        assert_ne!(one, json_key(&["/a", "/b"], r#"{"a":"12","b":"3"}"#), "values do not run together");
        assert_ne!(one, json_key(&["/b", "/a"], r#"{"a":"1","b":"23"}"#));
        assert_ne!(one, json_key(&["/a", "/b"], r#"{"a":"01","b":"23"}"#), "other text of an equal number");
        assert_ne!(one, key_of(MessageType::Json, "trades", &["/a", "/b"], r#"{"a":"1","b":"23"}"#));
        assert_eq!(one, key_of(MessageType::Nvfix, "orders", &["/a", "/b"], "a=1\u{1}b=23\u{1}"));
        let object = json_key(&["/a"], r#"{"a":{"x": 1}}"#);
        assert_ne!(object, json_key(&["/a"], r#"{"a":{"x": 2}}"#), "the bytes of an object count");
    }

    #[test]
    fn a_missing_field_counts_as_null_and_is_reported() {
        let missing = json_key(&["/a"], "{}");
        assert!(missing.has_missing());
        for data in [r#"{"a":null}"#, r#"{"a":""}"#, r#"{"a":[]}"#, "[1]", "5"] {
            assert_eq!(json_key(&["/a"], data), missing, "{data}");
        }
        let present = json_key(&["/a"], r#"{"a":0}"#);
        assert!(!present.has_missing());
        assert_ne!(present, missing);
    }

    #[test]
    fn fields_that_cannot_be_read_are_an_error_and_give_no_key() {
        let fields = KeyFields::new(MessageType::Json, "orders", &["/a".into()]).unwrap();
        let deep = |levels| format!("{{\"a\":1,\"b\":{}{}}}", "[".repeat(levels), "]".repeat(levels));
        let (shallow, deep) = (deep(255), deep(256));
        assert!(fields.key_of(shallow.as_bytes(), &mut Arena::default()).is_ok());
        for data in ["{\"b\"", r#"{"a":1"#, r#"{"a":1,"b":10"#, r#"{"a":1,"b":x}"#, r#"{"a":1} {}"#, &deep] {
            assert!(fields.key_of(data.as_bytes(), &mut Arena::default()).is_err(), "{data}");
        }
        let refused = |message_type, fields: &[&str]| {
            let fields: Vec<String> = fields.iter().map(|field| field.to_string()).collect();
            KeyFields::new(message_type, "orders", &fields).unwrap_err().to_string()
        };
        assert_eq!(refused(MessageType::Json, &[]), "key: at least one field is required");
        assert_eq!(
            refused(MessageType::Json, &["/a", "/a + 1"]),
            "key: \"/a + 1\" is not the name of a field, such as /symbol"
        );
        assert_eq!(
            refused(MessageType::Binary, &["/a"]),
            "binary messages have no fields; remove the list of key fields, and supply keys"
        );
    }

    #[test]
    fn a_supplied_key_has_a_limit_and_few_characters() {
        assert_eq!(check_supplied_key(b"aZ09+/=-_"), Ok("aZ09+/=-_"));
        assert_eq!(check_supplied_key(&[b'k'; 255]).map(str::len), Ok(255));
        let refused = |key: &[u8]| check_supplied_key(key).unwrap_err().to_string();
        assert_eq!(refused(b""), "the key is empty; a key has 1 to 255 characters");
        assert_eq!(refused(&[b'k'; 256]), "the key has 256 bytes; a key has 1 to 255 characters");
        let allowed = "a key has letters, digits, '+', '/', '=', '-' and '_' only";
        assert_eq!(refused(b"a b"), format!("character 2 of the key is not allowed; {allowed}"));
        assert_eq!(refused("aß".as_bytes()), format!("character 2 of the key is not allowed; {allowed}"));
    }

    #[test]
    fn a_key_is_made_of_any_text_up_to_its_limit() {
        assert_eq!(Key::from_bytes(b"abc").unwrap().as_str(), "abc");
        assert_eq!(Key::from_bytes(&[b'k'; 255]).unwrap().len(), 255);
        for bytes in [&b""[..], &[b'k'; 256], &[0xff]] {
            assert_eq!(Key::from_bytes(bytes), None);
        }
    }
}

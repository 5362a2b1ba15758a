//! `json`: wanted members are read in one pass over the document, everything else is checked and skipped.

use jiter::{Jiter, JiterError, NumberAny, NumberInt, Peek};

use super::{Fields, Format, Malformed, Path, Scalar};

pub(super) struct Json;

impl Format for Json {
    fn has_fields(&self) -> bool {
        true
    }

    fn read(&self, data: &[u8], paths: &[Path], fields: &mut Fields) -> Result<(), Malformed> {
        fields.reset(paths.len());
        let mut json = Jiter::new(data);
        let mut reader = Reader { paths, fields };
        let all: Vec<usize> = (0..paths.len()).collect();
        let read =
            json.peek().and_then(|peek| reader.value(&mut json, peek, &all, 0)).and_then(|()| json.finish());
        read.map_err(|_| Malformed)?;
        for (at, path) in paths.iter().enumerate() {
            if let Some(index) = path.index {
                fields.select(at, index);
            }
        }
        Ok(())
    }
}

struct Reader<'a> {
    paths: &'a [Path],
    fields: &'a mut Fields,
}

impl Reader<'_> {
    /// Reads a value that `wanted` paths lead to, `depth` steps of each taken.
    fn value(
        &mut self,
        json: &mut Jiter<'_>,
        peek: Peek,
        wanted: &[usize],
        depth: usize,
    ) -> Result<(), JiterError> {
        let is_here = |path: &usize| self.paths[*path].steps.len() == depth;
        let here: Vec<usize> = wanted.iter().copied().filter(is_here).collect();
        let below: Vec<usize> = wanted.iter().copied().filter(|path| !is_here(path)).collect();
        if peek == Peek::Object {
            for path in here {
                self.fields.begin(path, false);
                self.fields.push(path, Scalar::Compound);
            }
            return if below.is_empty() { json.known_skip(peek) } else { self.object(json, &below, depth) };
        }
        // A path that goes on below something that is no object finds nothing; one that repeats a member forgets the first.
        below.iter().for_each(|path| self.fields.begin(*path, false));
        if here.is_empty() {
            return json.known_skip(peek);
        }
        if peek == Peek::Array {
            here.iter().for_each(|path| self.fields.begin(*path, true));
            let mut element = json.known_array()?;
            while let Some(peek) = element {
                self.scalar(json, peek, &here)?;
                element = json.array_step()?;
            }
            return Ok(());
        }
        here.iter().for_each(|path| self.fields.begin(*path, false));
        self.scalar(json, peek, &here)
    }

    fn object(&mut self, json: &mut Jiter<'_>, wanted: &[usize], depth: usize) -> Result<(), JiterError> {
        let mut matching = Vec::new();
        let mut key = json.known_object()?;
        while let Some(name) = key {
            matching.clear();
            matching.extend(wanted.iter().copied().filter(|path| &*self.paths[*path].steps[depth] == name));
            let peek = json.peek()?;
            if matching.is_empty() {
                json.known_skip(peek)?;
            } else {
                self.value(json, peek, &matching, depth + 1)?;
            }
            key = json.next_key()?;
        }
        Ok(())
    }

    fn scalar(&mut self, json: &mut Jiter<'_>, peek: Peek, paths: &[usize]) -> Result<(), JiterError> {
        let scalar = match peek {
            Peek::Null => {
                json.known_null()?;
                Scalar::Null
            }
            Peek::True | Peek::False => Scalar::Bool(json.known_bool(peek)?),
            Peek::String => Scalar::Text(json.known_str()?.as_bytes()),
            Peek::Array | Peek::Object => {
                json.known_skip(peek)?;
                Scalar::Compound
            }
            _ => match json.known_number(peek)? {
                NumberAny::Int(NumberInt::Int(value)) => Scalar::Int(value),
                NumberAny::Float(value) => Scalar::Float(value),
            },
        };
        paths.iter().for_each(|path| self.fields.push(*path, scalar));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(data: &str, path: &str) -> Option<Vec<String>> {
        let mut fields = Fields::default();
        Json.read(data.as_bytes(), &[Path::parse(path).unwrap()], &mut fields).ok()?;
        Some(fields.values(0).map(|value| format!("{value:?}")).collect())
    }

    #[test]
    fn members_are_found_at_any_depth() {
        let data = r#"{"a":1,"b":{"c":"x\u00e9","d":[1,"two",{"e":3}]},"f":2.5,"g":true,"h":null,"i":""}"#;
        assert_eq!(read(data, "/a").unwrap(), ["Int(1)"]);
        assert_eq!(read(data, "/b/c").unwrap(), [format!("Text({:?})", "xé".as_bytes())]);
        assert_eq!(read(data, "/b/d").unwrap().len(), 3);
        assert_eq!(read(data, "/b/d[0]").unwrap(), ["Int(1)"]);
        assert_eq!(read(data, "/b/d[7]").unwrap(), Vec::<String>::new());
        assert_eq!(read(data, "/b").unwrap(), ["Compound"]);
        assert_eq!(read(data, "/f").unwrap(), ["Float(2.5)"]);
        assert_eq!(read(data, "/g").unwrap(), ["Bool(true)"]);
        assert_eq!(read(data, "/h").unwrap(), ["Null"]);
        assert_eq!(read(data, "/i").unwrap(), ["Null"]);
        assert_eq!(read(data, "/a/x").unwrap(), Vec::<String>::new());
        assert_eq!(read(r#"{"a":1,"a":2}"#, "/a").unwrap(), ["Int(2)"]);
    }

    #[test]
    fn what_is_not_json_is_malformed_also_behind_the_wanted_member() {
        for data in ["", "{", r#"{"a":1"#, r#"{"a":1}x"#, r#"{"a":1,"b":tru}"#, "\u{1}", r#"{"a":"\ud800"}"#]
        {
            assert_eq!(read(data, "/a"), None, "{data}");
        }
        let deep = "[".repeat(100_000);
        assert_eq!(read(&deep, "/a"), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_malformed(data in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut fields = Fields::default();
            let paths = [Path::parse("/a").unwrap(), Path::parse("/a/b[1]").unwrap()];
            let _ = Json.read(&data, &paths, &mut fields);
            prop_assert!(fields.values(0).count() + fields.values(1).count() <= data.len() + 2);
        }
    }
}

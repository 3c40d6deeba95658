//! The query of a `/files` request.

/// What the query says. Absent and empty are different for the path.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct FilesQuery {
    /// Path as the caller wrote it.
    pub(super) path: Option<String>,
    /// Acting user.
    pub(super) username: Option<String>,
    /// Signature of the link.
    pub(super) signature: Option<String>,
    /// End of the signature's validity, as written.
    pub(super) signature_expiration: Option<String>,
}

impl FilesQuery {
    /// Reads a query; of a name that comes twice the first counts. None when something in it is not
    /// UTF-8.
    pub(super) fn parse(query: &str) -> Option<Self> {
        let mut read = Self::default();
        for pair in query.split('&') {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let place = match name {
                "path" => &mut read.path,
                "username" => &mut read.username,
                "signature" => &mut read.signature,
                "signature_expiration" => &mut read.signature_expiration,
                _ => continue,
            };
            if place.is_none() {
                *place = Some(decode(value)?);
            }
        }
        // Some clients send empty parameters for absent ones.
        read.username = read.username.filter(|name| !name.is_empty());
        read.signature_expiration = read.signature_expiration.filter(|end| !end.is_empty());
        Some(read)
    }
}

/// Undoes percent and plus. A percent sign that begins no byte stays as it is.
fn decode(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    let mut plain = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let digit = |place: usize| {
            let letter = char::from(*bytes.get(place)?);
            letter.to_digit(16).map(|digit| digit as u8)
        };
        match (bytes[at], digit(at + 1), digit(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                plain.push(high << 4 | low);
                at += 2;
            }
            (b'+', ..) => plain.push(b' '),
            (byte, ..) => plain.push(byte),
        }
        at += 1;
    }
    String::from_utf8(plain).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_decoded() {
        let query = FilesQuery::parse("path=%2Fa+b%25%zz&username=&x=1&signature=v1_%2B&path=c");
        assert_eq!(
            query,
            Some(FilesQuery {
                path: Some("/a b%%zz".into()),
                signature: Some("v1_+".into()),
                ..FilesQuery::default()
            })
        );
        assert_eq!(FilesQuery::parse(""), Some(FilesQuery::default()));
        assert_eq!(FilesQuery::parse("path=%ff"), None);
        assert_eq!(FilesQuery::parse("path").unwrap().path.as_deref(), Some(""));
    }
}

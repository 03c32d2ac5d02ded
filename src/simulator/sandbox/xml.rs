//! XML responses of the AWS query protocols.

use std::fmt::Write as _;

/// A response body under construction.
#[derive(Debug, Default)]
pub(super) struct Xml(String);

impl Xml {
    /// Adds an element with text.
    pub(super) fn text(mut self, name: &str, text: &str) -> Self {
        let _ = write!(self.0, "<{name}>");
        for c in text.chars() {
            match c {
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '&' => self.0.push_str("&amp;"),
                other => self.0.push(other),
            }
        }
        let _ = write!(self.0, "</{name}>");
        self
    }

    /// Adds an element with the content of `inner`.
    pub(super) fn element(mut self, name: &str, inner: &Self) -> Self {
        let _ = write!(self.0, "<{name}>{}</{name}>", inner.0);
        self
    }

    /// Adds a list with one `item` element for each entry.
    pub(super) fn list(self, name: &str, item: &str, all: impl IntoIterator<Item = Self>) -> Self {
        let items = all.into_iter().fold(Self::default(), |items, one| items.element(item, &one));
        self.element(name, &items)
    }

    /// Returns a complete EC2 response.
    pub(super) fn into_ec2_response(self, action: &str) -> Vec<u8> {
        let space = "http://ec2.amazonaws.com/doc/2016-11-15/";
        let inner = self.0;
        format!(
            "<{action}Response xmlns=\"{space}\"><requestId>embedded</requestId>{inner}\
             </{action}Response>"
        )
        .into_bytes()
    }

    /// Returns a complete query-protocol response of another service.
    pub(super) fn into_query_response(self, action: &str) -> Vec<u8> {
        let inner = self.0;
        format!(
            "<{action}Response><{action}Result>{inner}</{action}Result><ResponseMetadata>\
             <RequestId>embedded</RequestId></ResponseMetadata></{action}Response>"
        )
        .into_bytes()
    }

    /// Returns an error in the EC2 format.
    pub(super) fn ec2_error(code: &str, message: &str) -> Vec<u8> {
        let error = Self::default().text("Code", code).text("Message", message);
        let errors = Self::default().list("Errors", "Error", [error]);
        let whole = Self::default().element("Response", &errors.text("RequestID", "embedded"));
        whole.0.into_bytes()
    }

    /// Returns an error in the query-protocol format of other services.
    pub(super) fn query_error(code: &str, message: &str) -> Vec<u8> {
        let error = Self::default().text("Type", "Sender").text("Code", code);
        let error = Self::default().element("Error", &error.text("Message", message));
        Self::default()
            .element("ErrorResponse", &error.text("RequestId", "embedded"))
            .0
            .into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn xml_text_is_escaped() {
        let answer =
            Xml::default().text("message", "a < b & c").into_ec2_response("DescribeThings");
        let answer = String::from_utf8(answer).expect("text");
        assert!(answer.contains("<message>a &lt; b &amp; c</message>"), "{answer}");
    }
}

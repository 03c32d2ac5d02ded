//! A server with prepared replies.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use serde_json::Value;

use super::client::ForgeAddress;

pub(super) const TOKEN: &str = "planted_secret";

/// The start of a response, and its body.
pub(super) type Reply = (&'static str, String);

/// Serves the replies in order, and returns the address and the requests.
pub(super) fn serve_replies(replies: Vec<Reply>) -> (ForgeAddress, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let (request_sender, requests) = channel();
    thread::spawn(move || {
        for (head, body) in replies {
            let Ok((mut stream, _)) = listener.accept() else { return };
            let request = request(&mut stream);
            let _ = request_sender.send(request);
            let length = body.len();
            let _ = write!(
                stream,
                "HTTP/1.1 {head}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
            );
        }
    });
    let address = ForgeAddress::parse(&format!("http://{address}/")).expect("loopback");
    (address, requests)
}

fn request(stream: &mut std::net::TcpStream) -> String {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let n = stream.read(&mut buffer).unwrap_or(0);
        bytes.extend_from_slice(&buffer[..n]);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            if n == 0 {
                return text;
            }
            continue;
        };
        let content_length = head
            .lines()
            .find_map(|line| {
                line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok()
            })
            .unwrap_or(0);
        if body.len() >= content_length || n == 0 {
            return text;
        }
    }
}

pub(super) fn ok(body: &Value) -> Reply {
    ("200 OK", body.to_string())
}

/// Returns method and path of each request, and its body.
pub(super) fn lines(requests: &Receiver<String>) -> Vec<(String, String)> {
    let line = |request: String| {
        let (head, body) = request.split_once("\r\n\r\n").unwrap_or((&request, ""));
        let first = head.lines().next().unwrap_or_default().trim_end_matches(" HTTP/1.1");
        (first.to_owned(), body.to_owned())
    };
    requests.iter().map(line).collect()
}

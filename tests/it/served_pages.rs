//! Pages on this machine: of a plan, and of the sandbox.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::binary::Workspace;

/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_mins(1);

/// A program that serves a page, ended by Ctrl-C.
struct PreviewServer {
    process: Child,
    /// Where the page is.
    page: String,
}

impl PreviewServer {
    fn start(place: &Workspace, arguments: &[&str]) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_fleetwright"))
            .args(arguments)
            .current_dir(place.root())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program");
        let lines = BufReader::new(process.stdout.take().expect("piped")).lines();
        let mut lines = lines.map(|line| line.expect("text"));
        let line =
            lines.find(|line| line.contains("the plan for it: ") || line.contains("page of"));
        let line = line.expect("it says where");
        let (_, rest) = line.split_once("http://").expect("a URL");
        let page = rest.split('/').next().expect("an address").to_owned();
        // What is said later has somebody who reads it.
        std::thread::spawn(move || lines.for_each(drop));
        Self { process, page }
    }

    fn ask(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(&self.page).expect("it listens");
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer
    }

    fn get(&self) -> String {
        let answer = self.ask("/");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        answer
    }

    fn until(&self, text: &str) -> String {
        let begun = Instant::now();
        loop {
            let answer = self.get();
            if answer.contains(text) {
                return answer;
            }
            assert!(begun.elapsed() < PATIENCE, "{text} is not in {answer}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    fn end(mut self) {
        let id = self.process.id().to_string();
        assert!(Command::new("kill").args(["-INT", &id]).status().expect("kill").success());
        assert_eq!(self.process.wait().expect("it ends").code(), Some(0));
    }
}

impl Drop for PreviewServer {
    fn drop(&mut self) {
        // It has ended by itself where the test went well.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn plan_page_follows_files_and_shows_a_forecast() {
    let place = Workspace::example("quickstart");
    let arguments = ["plan", "--serve=127.0.0.1:0", "--out", "p.json"];
    let served = PreviewServer::start(&place, &arguments);
    let page = served.get();
    assert!(page.contains("preview: nothing is applied") && !page.contains("<form"), "{page}");
    assert!(page.contains("Unschedulable pods"), "{page}");
    assert!(place.path("p.json").exists(), "and the plan is saved");
    served.until("id=\"forecast\"");
    let shop = place.read("apps/reports.yaml");
    place.write("apps/reports.yaml", &shop.replace("160Gi", "1Gi"));
    let begun = Instant::now();
    while served.get().contains("Unschedulable pods") {
        assert!(begun.elapsed() < PATIENCE, "the page does not follow");
        std::thread::sleep(Duration::from_millis(200));
    }
    served.end();
}

#[test]
fn sandbox_page_shows_running_instances() {
    let place = Workspace::example("quickstart");
    let served = PreviewServer::start(&place, &["sandbox", "--speed", "20"]);
    served.until("3 of 3</b><span class=\"dim\">nodes Ready");
    let page = served.until("id=\"forecast\"");
    assert!(page.contains("Nodes before and after"), "{page}");
    served.end();
}

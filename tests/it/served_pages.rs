//! Local pages of a plan preview and of the sandbox.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::binary::Workspace;

/// Timeout of every wait.
const TIMEOUT: Duration = Duration::from_mins(1);

/// A program that serves a page, which Ctrl-C stops.
struct PreviewServer {
    process: Child,
    /// Host and port of the page.
    page: String,
}

impl PreviewServer {
    fn start(workspace: &Workspace, arguments: &[&str]) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_fleetwright"))
            .args(arguments)
            .current_dir(workspace.root())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program");
        let lines = BufReader::new(process.stdout.take().expect("piped")).lines();
        let mut lines = lines.map(|line| line.expect("text"));
        let names_page = ["the plan for it: ", "page of", "The controller (mode"];
        let line = lines.find(|line| names_page.iter().any(|part| line.contains(part)));
        let line = line.expect("the program prints the address");
        let (_, rest) = line.split_once("http://").expect("a URL");
        let page = rest.split('/').next().expect("an address").to_owned();
        // The thread reads further output, so that the pipe never fills.
        std::thread::spawn(move || lines.for_each(drop));
        Self { process, page }
    }

    fn request_path(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(&self.page).expect("it listens");
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer
    }

    fn get(&self) -> String {
        let answer = self.request_path("/");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        answer
    }

    fn wait_for(&self, text: &str) -> String {
        let started = Instant::now();
        loop {
            let answer = self.get();
            if answer.contains(text) {
                return answer;
            }
            assert!(started.elapsed() < TIMEOUT, "{text} is not in {answer}");
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
        // After a successful test, the process has already ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn plan_page_follows_files_and_shows_a_forecast() {
    let workspace = Workspace::example("quickstart");
    let arguments = ["plan", "--serve=127.0.0.1:0", "--out", "p.json"];
    let served = PreviewServer::start(&workspace, &arguments);
    let page = served.get();
    assert!(page.contains("preview: nothing is applied") && !page.contains("<form"), "{page}");
    assert!(page.contains("Unschedulable pods"), "{page}");
    assert!(workspace.path("p.json").exists(), "the plan is saved");
    served.wait_for("id=\"forecast\"");
    let shop = workspace.read("apps/reports.yaml");
    workspace.write("apps/reports.yaml", &shop.replace("160Gi", "1Gi"));
    let started = Instant::now();
    while served.get().contains("Unschedulable pods") {
        assert!(started.elapsed() < TIMEOUT, "the page does not follow the files");
        std::thread::sleep(Duration::from_millis(200));
    }
    // Without files there is no newer plan, and the verdict says so.
    for entry in std::fs::read_dir(workspace.root()).expect("a directory") {
        let path = entry.expect("an entry").path();
        let removed = if path.is_dir() {
            std::fs::remove_dir_all(&path)
        } else {
            std::fs::remove_file(&path)
        };
        removed.expect("removed");
    }
    let page = served.wait_for("this page shows the previous plan</strong>");
    assert!(page.contains("the directory is empty"), "{page}");
    served.end();
}

#[cfg(feature = "cluster")]
#[test]
fn sandbox_serves_the_page_of_its_controller() {
    let workspace = Workspace::example("quickstart");
    let served = PreviewServer::start(&workspace, &["sandbox", "--speed", "20"]);
    let page = served.wait_for("<dt>Replica</dt><dd>leader</dd>");
    assert!(!page.contains("preview: nothing is applied"), "{page}");
    served.end();
}

#[test]
fn sandbox_page_shows_running_instances() {
    let workspace = Workspace::example("quickstart");
    let mut arguments = vec!["sandbox", "--speed", "20"];
    if cfg!(feature = "cluster") {
        arguments.push("--no-controller");
    }
    let served = PreviewServer::start(&workspace, &arguments);
    served.wait_for("3 of 3</b> nodes Ready");
    let page = served.wait_for("id=\"forecast\"");
    assert!(page.contains("id=\"nodes\""), "{page}");
    served.end();
}

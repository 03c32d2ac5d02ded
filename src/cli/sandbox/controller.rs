//! The controller inside of the sandbox: the one of real clusters, in a thread of its own. It reaches
//! the sandbox through its APIs alone, and reads no credentials of the environment.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::ControllerMessage;
use crate::cli::error::CliError;
use crate::cli::settings::SandboxSettings;
use crate::cli::{live, run};
use crate::controller::runtime::live_cluster::LiveOptions;
use crate::controller::runtime::{self, Host, PageChannels, Reporter, RunOptions, StatusPage};
use crate::controller::{ControllerState, StartOptions, Status, StatusPublisher};
use crate::model::desired::Mode;
use crate::server::http::{HttpServer, PageSource, ServerConfig, listen};
use crate::telemetry::LogFormat;

/// Stack of the controller thread, as large as that of a main thread.
const STACK_BYTES: usize = 8 << 20;

/// Poll interval for the end of the controller.
const STOP_POLL: Duration = Duration::from_millis(10);

/// The open page of the controller.
struct OpenPage {
    url: String,
    /// Takes hints that the files have changed.
    hints: tokio::sync::mpsc::Sender<()>,
}

/// A running controller.
pub(super) struct SandboxController {
    messages: Receiver<ControllerMessage>,
    page: Arc<OnceLock<OpenPage>>,
    shutdown: Arc<AtomicBool>,
}

impl SandboxController {
    /// Starts a controller over the APIs at `url`.
    pub(super) fn start(
        settings: &SandboxSettings,
        mode: Mode,
        url: &str,
    ) -> Result<Self, CliError> {
        let (sender, messages) = mpsc::channel();
        let (page, shutdown) = (Arc::<OnceLock<_>>::default(), Arc::<AtomicBool>::default());
        let options = LiveOptions {
            run: RunOptions {
                mode: Some(mode),
                once: false,
                log_format: LogFormat::Text,
                accepts_api_tokens: false,
            },
            retries_connect: false,
            lock_timeout: Duration::ZERO,
            state_keys: None,
            shutdown: Arc::clone(&shutdown),
        };
        let mut host =
            ThreadHost { sender: sender.clone(), page: Arc::clone(&page), port: settings.page };
        let (source, url) = (settings.source.clone(), url.to_owned());
        let work = move || {
            let reader = run::sandbox_reader(&source);
            let connect = async || live::connect_to_sandbox(&source, &url).await;
            let end = runtime::live::run(&mut host, &options, reader, connect);
            // Without a receiver, the command has ended.
            let _ = sender.send(ControllerMessage::Ended(end.map(|_| ())));
        };
        std::thread::Builder::new()
            .name("controller".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(work)
            .map_err(|error| {
                CliError::new(error).context("cannot start the controller".to_owned())
            })?;
        Ok(Self { messages, page, shutdown })
    }

    /// Returns the messages since the last call. A controller that has ended without a message has
    /// panicked.
    pub(super) fn messages(&self) -> Vec<ControllerMessage> {
        let mut messages = Vec::new();
        loop {
            match self.messages.try_recv() {
                Ok(message) => messages.push(message),
                Err(TryRecvError::Empty) => return messages,
                Err(TryRecvError::Disconnected) => {
                    let error = CliError::text("the controller has ended unexpectedly");
                    messages.push(ControllerMessage::Ended(Err(error)));
                    return messages;
                }
            }
        }
    }

    /// Returns the URL of the page, once it is open.
    pub(super) fn page(&self) -> Option<&str> {
        self.page.get().map(|page| page.url.as_str())
    }

    /// Ends the controller, and waits for it.
    pub(super) async fn stop(self) {
        self.shutdown.store(true, Ordering::Relaxed);
        loop {
            // Other messages are about changes that end with the sandbox.
            if self
                .messages()
                .into_iter()
                .any(|message| matches!(message, ControllerMessage::Ended(_)))
            {
                return;
            }
            tokio::time::sleep(STOP_POLL).await;
        }
    }

    /// Announces that the files have changed.
    pub(super) fn files_changed(&self) {
        if let Some(page) = self.page.get() {
            // A hint that waits already covers this change.
            let _ = page.hints.try_send(());
        }
    }
}

/// The command around the controller, seen from its thread.
struct ThreadHost {
    sender: Sender<ControllerMessage>,
    page: Arc<OnceLock<OpenPage>>,
    /// Port of the page.
    port: u16,
}

impl ThreadHost {
    fn send(&self, message: ControllerMessage) {
        // Without a receiver, the command has ended.
        let _ = self.sender.send(message);
    }
}

impl Reporter for ThreadHost {
    fn report(&mut self, line: &str) {
        self.send(ControllerMessage::Line(line.to_owned()));
    }

    fn report_raw(&mut self, text: &str) {
        self.send(ControllerMessage::Text(text.to_owned()));
    }
}

impl Host for ThreadHost {
    type Error = CliError;
    type Page = ControllerPage;

    fn open_page(
        &mut self,
        start: &StartOptions,
        channels: PageChannels,
    ) -> Result<ControllerPage, CliError> {
        let PageChannels { requests: _, hints, forecasts } = channels;
        let (publisher, receiver) =
            StatusPublisher::new(ControllerState::new(start.clone()).status());
        // The sandbox has no operators: it authenticates no one.
        let source = PageSource::Controller(None);
        let config = ServerConfig { forecast: forecasts, ..ServerConfig::new(receiver, source) };
        let address = SocketAddr::from(([127, 0, 0, 1], self.port));
        let server = listen(address, config).map_err(|error| {
            CliError::text(error.to_string())
                .context(format!("cannot serve a page on {address}"))
                .hint("pass --page with a port that is free")
        })?;
        let url = format!("http://{}/", server.address());
        // The runtime opens the page once.
        let _ = self.page.set(OpenPage { url, hints });
        Ok(ControllerPage { publisher, _server: server })
    }
}

/// The page of the controller.
struct ControllerPage {
    publisher: StatusPublisher,
    _server: HttpServer,
}

impl StatusPage for ControllerPage {
    fn publish(&self, status: Status) {
        self.publisher.publish(status);
    }
}

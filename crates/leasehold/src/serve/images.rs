//! The images of the daemon: the store of this state directory, which the command line uses, too.
//!
//! Names and rights are each tenant's own scope. That of the operator's own tenant is the command line's: what
//! `leasehold image` brings is there for it. Registries are asked as nobody, by HTTPS; by plain HTTP on loopback alone.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use leasehold_control::engine::parts::Doing;
use leasehold_control::image::{ImageName, ImageStart, Images, Mounted, Pull};
use leasehold_control::policies::DEFAULT_TENANT;
use leasehold_core::digest::Digest;
use leasehold_core::error::{ErrorKind, PublicError};
use leasehold_core::name::Name;
use leasehold_image::ImageError;
use leasehold_image::reference::Reference;
use leasehold_image::registry::PullOptions;
use leasehold_image::store::{Progress, Scope, Store, Watch};
use tokio::sync::{Semaphore, watch};

use crate::fault::Fault;
use crate::{image, run};

/// Images of one tenant that are pulled at one time; further ones wait, and hold up no other tenant.
const PULLS_MAX: usize = 2;
/// Names of one tenant that registries are asked for at one time. Each has a thread until its registry is done, however long
/// that takes, and may hold what a hostile answer comes to in memory.
const RESOLVES_MAX: usize = 2;
/// Longest that a registry may take to say what a name stands for.
const RESOLVE_MAX: Duration = Duration::from_secs(30);
/// How long a connection to a registry may stand still.
const STALL: Duration = Duration::from_secs(15);

type Told = Option<Result<(), PublicError>>;

/// Images for the engine.
#[derive(Clone)]
pub(crate) struct Stocked {
    state: PathBuf,
    store: Arc<OnceLock<Store>>,
    pulls: Arc<Mutex<Pulls>>,
}

#[derive(Default)]
struct Pulls {
    /// What is pulled now. It is gone when nobody is at it.
    under_way: HashMap<(Name, Digest), Weak<watch::Sender<Told>>>,
    places: HashMap<Name, Arc<Semaphore>>,
    resolves: HashMap<Name, Arc<Semaphore>>,
}

/// Ends a pull that nobody waits for.
struct Wanted(Arc<watch::Sender<Told>>);

impl Watch for Wanted {
    fn tell(&self, _: Progress) {}

    fn given_up(&self) -> bool {
        self.0.is_closed()
    }
}

fn scope(tenant: &Name) -> Result<Scope, ImageError> {
    match tenant.as_str() {
        DEFAULT_TENANT => Ok(Scope::host()),
        // A name of a tenant may be one that no scope has, and must not be that of the command line.
        name => Scope::new(&format!("t-{}", &Digest::of(name.as_bytes()).hex()[..40])),
    }
}

/// A failure for a caller of ours: without paths, with a mend that is theirs.
fn told(error: &ImageError) -> PublicError {
    tracing::warn!(%error, "an image failed");
    let public = error.public();
    match error {
        // What a registry thinks of us says nothing about our caller's key.
        ImageError::Answer {
            status: 401 | 403, ..
        } => PublicError::new(ErrorKind::Forbidden, public.message).hint(
            "the daemon asks registries as nobody: `leasehold image pull NAME --user …` on its host brings the \
             image for the operator's own tenant",
        ),
        ImageError::Absent(_) => {
            PublicError::new(ErrorKind::NotFound, public.message).hint("look at the name, or let it be pulled: `pull: missing`")
        }
        _ => public,
    }
}

fn of_fault(fault: &Fault) -> PublicError {
    let error = PublicError::new(ErrorKind::Unsupported, fault.chain());
    match fault.mend() {
        Some(mend) => error.hint(mend),
        None => error,
    }
}

/// A digest alone, which is no name of any registry.
fn reference(name: &str) -> Result<Option<Reference>, ImageError> {
    match Digest::parse(name) {
        Ok(_) => Ok(None),
        Err(_) => Reference::parse(name).map(Some),
    }
}

fn options() -> PullOptions {
    PullOptions {
        stall: STALL,
        ..PullOptions::default()
    }
}

impl Stocked {
    /// Of the store below a state directory, made when it is first wanted.
    pub(crate) fn new(state: PathBuf) -> Self {
        Self {
            state,
            store: Arc::default(),
            pulls: Arc::default(),
        }
    }

    /// Does something with the store where it holds up nobody.
    async fn with<T: Send + 'static>(
        &self,
        what: impl FnOnce(Store) -> Result<T, PublicError> + Send + 'static,
    ) -> Result<T, PublicError> {
        let this = self.clone();
        let done = tokio::task::spawn_blocking(move || {
            let store = match this.store.get() {
                Some(store) => store.clone(),
                None => {
                    let opened = image::below(&this.state).map_err(|fault| of_fault(&fault))?;
                    this.store.get_or_init(|| opened).clone()
                }
            };
            what(store)
        });
        done.await.unwrap_or_else(|error| {
            let message = format!("the image store broke down: {error}");
            Err(PublicError::new(ErrorKind::Internal, message))
        })
    }

    /// Waits for the pull of an image with everybody who does, and begins it where nobody is at it.
    fn join(&self, tenant: &Name, image: &ImageStart) -> watch::Receiver<Told> {
        let mut pulls = self.pulls.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (tenant.clone(), image.digest);
        let under_way = pulls.under_way.get(&key).and_then(Weak::upgrade);
        // One that nobody waits for is about to give up.
        if let Some(sender) = under_way.filter(|sender| !sender.is_closed()) {
            return sender.subscribe();
        }
        pulls
            .under_way
            .retain(|_, sender| sender.strong_count() > 0);
        let (sender, receiver) = watch::channel(None);
        let sender = Arc::new(sender);
        pulls.under_way.insert(key, Arc::downgrade(&sender));
        let places = pulls.places.entry(tenant.clone());
        let places = places.or_insert_with(|| Arc::new(Semaphore::new(PULLS_MAX)));
        let pulling = self
            .clone()
            .pull(tenant.clone(), image.clone(), Arc::clone(places), sender);
        tokio::spawn(pulling);
        receiver
    }

    /// The places of a tenant at registries.
    fn resolves_of(&self, tenant: &Name) -> Arc<Semaphore> {
        let mut pulls = self.pulls.lock().unwrap_or_else(PoisonError::into_inner);
        let places = pulls.resolves.entry(tenant.clone());
        Arc::clone(places.or_insert_with(|| Arc::new(Semaphore::new(RESOLVES_MAX))))
    }

    async fn pull(
        self,
        tenant: Name,
        image: ImageStart,
        places: Arc<Semaphore>,
        sender: Arc<watch::Sender<Told>>,
    ) {
        let place = tokio::select! {
            place = places.acquire_owned() => place,
            () = sender.closed() => return,
        };
        let watch = Wanted(Arc::clone(&sender));
        let pulled = self.with(move |store| {
            let scope = scope(&tenant).map_err(|error| told(&error))?;
            let Some(name) = reference(&image.name).map_err(|error| told(&error))? else {
                return Err(told(&ImageError::Absent(image.name)));
            };
            let digest = Some(image.digest);
            let pulled = store.pull_digest(&scope, &name, digest, &options(), &watch);
            pulled.map(|_| ()).map_err(|error| told(&error))
        });
        let pulled = pulled.await;
        drop(place);
        sender.send_replace(Some(pulled));
    }
}

/// What a tenant's name stands for here. Policy is asked about the repository, so an image counts for one only if it came
/// from there, whatever its digest is.
fn here(store: &Store, scope: &Scope, name: &str) -> Result<Option<Digest>, ImageError> {
    let Some(reference) = reference(name)? else {
        let digest = Digest::parse(name).ok();
        let found = digest
            .map(|digest| store.image(scope, &digest))
            .transpose()?;
        return Ok(found.flatten().map(|image| image.digest));
    };
    let Some(digest) = reference.digest() else {
        let full = reference.to_string();
        let names = store.names(scope)?;
        return Ok(names
            .into_iter()
            .find(|held| held.name == full)
            .map(|held| held.digest));
    };
    let Some(image) = store.image(scope, &digest)? else {
        return Ok(None);
    };
    let of_image =
        |held: leasehold_image::store::records::Name| (held.digest == digest).then_some(held.name);
    let names = store.names(scope)?.into_iter().filter_map(of_image);
    let from_there = |name: String| {
        Reference::parse(&name).is_ok_and(|other| {
            (other.registry(), other.repository()) == (reference.registry(), reference.repository())
        })
    };
    Ok(names
        .chain([image.source])
        .any(from_there)
        .then_some(digest))
}

/// What a name stands for: here, or where that is wanted at its registry; `None` where a registry must be asked.
fn resolve_here(
    store: &Store,
    tenant: &Name,
    name: &str,
    pull: Pull,
) -> Result<Option<Digest>, ImageError> {
    let scope = scope(tenant)?;
    let reference = reference(name)?;
    let fixed = reference
        .as_ref()
        .is_none_or(|name| name.digest().is_some());
    if (pull != Pull::Always || fixed)
        && let Some(digest) = here(store, &scope, name)?
    {
        return Ok(Some(digest));
    }
    match reference {
        Some(_) if pull != Pull::Never => Ok(None),
        _ => Err(ImageError::Absent(name.to_owned())),
    }
}

/// What a registry says that a name stands for.
fn resolve_there(store: &Store, name: &str) -> Result<Digest, ImageError> {
    match reference(name)? {
        Some(reference) => store.resolve(&reference, &options()),
        None => Err(ImageError::Absent(name.to_owned())),
    }
}

impl Images for Stocked {
    fn name(&self, text: &str) -> Result<ImageName, PublicError> {
        let name = reference(text).map_err(|error| error.public())?;
        Ok(match name {
            Some(name) => ImageName {
                full: name.to_string(),
                repository: format!("{}/{}", name.registry(), name.repository()),
            },
            None => ImageName {
                full: text.to_owned(),
                repository: text.to_owned(),
            },
        })
    }

    fn resolve(&self, tenant: Name, name: String, pull: Pull) -> Doing<'_, Digest> {
        Box::pin(async move {
            let shown = name.clone();
            let (whose, asked) = (tenant.clone(), name.clone());
            let here = self.with(move |store| {
                resolve_here(&store, &whose, &asked, pull).map_err(|error| told(&error))
            });
            if let Some(digest) = here.await? {
                return Ok(digest);
            }
            let places = self.resolves_of(&tenant);
            let resolving = async {
                let place = places.acquire_owned().await;
                self.with(move |store| {
                    // Given back by the thread, which may outlive whoever waits for it.
                    let _place = place;
                    resolve_there(&store, &name).map_err(|error| told(&error))
                })
                .await
            };
            match tokio::time::timeout(RESOLVE_MAX, resolving).await {
                Ok(resolved) => resolved,
                Err(_) => Err(PublicError::new(
                    ErrorKind::Unavailable,
                    format!(
                        "the registry of {shown} did not say within {} s what it stands for",
                        RESOLVE_MAX.as_secs()
                    ),
                )),
            }
        })
    }

    fn here(&self, tenant: Name, digest: Digest) -> Doing<'_, bool> {
        Box::pin(self.with(move |store| {
            let found = scope(&tenant).and_then(|scope| store.whole(&scope, &digest));
            found.map_err(|error| told(&error))
        }))
    }

    fn bring(&self, tenant: Name, image: ImageStart) -> Doing<'_, ()> {
        Box::pin(async move {
            if image.pull == Pull::Never {
                return Err(told(&ImageError::Absent(image.name)));
            }
            let mut receiver = self.join(&tenant, &image);
            let told = receiver.wait_for(Option::is_some).await;
            let told = told.map(|told| told.clone());
            told.ok().flatten().unwrap_or_else(|| {
                let message = "the pull of the image broke down";
                Err(PublicError::new(ErrorKind::Internal, message))
            })
        })
    }

    fn mount(&self, tenant: Name, image: ImageStart) -> Doing<'_, Mounted> {
        Box::pin(self.with(move |store| {
            let scope = scope(&tenant).map_err(|error| told(&error))?;
            let taken = run::image::take(&store, &scope, image.digest, &image.name, false);
            let chosen = taken.map_err(|fault| of_fault(&fault))?;
            let start = chosen.start.clone();
            let files = chosen.into_files().map_err(|error| {
                let message = format!("the lease of an image cannot be passed on: {error}");
                PublicError::new(ErrorKind::Unavailable, message)
            })?;
            Ok(Mounted {
                env: start.environment(),
                cwd: start.directory(),
                spec: start.spec,
                files,
            })
        }))
    }
}

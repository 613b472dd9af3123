//! The table of all operations. The router is made from it, and so is `/openapi.json`.

use axum::http::StatusCode;

use super::events::EventsQuery;
use super::operation::{Content, Operation, delete, get, list_of, post, put, schema_of};
use super::paging::{ListQuery, PageQuery};
use super::{
    FleetError, FleetLock, Nothing, WatchQuery, add, audit, backup, cancel, change_member, console,
    description, events, fast, gang, gangs, health, history, join_gang, leases, livez, members,
    metrics, pool, pools, pre_reboot, put_gang, put_pool, put_semaphore, quarantine, queue, readyz,
    release, remove_gang, remove_member, remove_pool, remove_semaphore, renew, restore,
    return_unit, semaphore, semaphores, start_gang, steady_state, submit, take, tokens, watch,
};
use crate::api::{
    AddSpec, Added, Code, CreateToken, Gang, Happening, Health, JoinGang, Joined, Lease, MadeToken,
    Member, MemberChanged, Pool, Principal, PutGang, PutPool, PutQuarantine, PutRules,
    PutSemaphore, Released, Removed, Request, RuleView, Semaphore, StartGang, Started, Submit,
    TakeSpec, Taken, TokenView, UsageRow,
};
use kofm_site::backup::Backup;

const FLEET: [(&str, &str, &str); 1] =
    [("fleet-lock-protocol", "true", "Says that the body is of the FleetLock protocol.")];

/// Errors of every change of what the sites agree on.
macro_rules! changes {
    ($($code:ident),*) => { &[Code::InUse, Code::TooMany, $(Code::$code),*] };
}

/// All operations of the API.
pub(super) fn operations() -> Vec<Operation> {
    let mut list = requests_and_leases();
    list.extend(cluster());
    list.extend(pools_and_units());
    list.extend(semaphores_and_gangs());
    list.extend(principals());
    list.extend(plain());
    list
}

fn requests_and_leases() -> Vec<Operation> {
    use Code::{
        Busy, Gone, InUse, Infeasible, Timeout, TooMany, UnknownPool, UnknownRequest, Unsupported,
    };
    let queued = |it: Operation, text, content| it.also(StatusCode::ACCEPTED, text, content);
    let request = Content::Json(schema_of::<Request>);
    let text = "Ask for units, all or nothing";
    let submit = post("/v1/requests", "submitRequest", text, submit)
        .takes::<Submit>()
        .json::<Request>("The request is granted, or over.")
        .fails(&[UnknownPool, Infeasible, Busy, Timeout, InUse, TooMany]);
    // All but the errors before the handler are of that protocol.
    let fleet = |it: Operation, others: &[(StatusCode, &'static str)]| {
        let error = Content::Json(schema_of::<FleetError>);
        let it = it
            .needs_headers(&FLEET)
            .takes::<FleetLock>()
            .answers("Done.", Content::Json(schema_of::<Nothing>))
            .also(StatusCode::BAD_REQUEST, "The header or the body is wrong.", error)
            .also(StatusCode::FORBIDDEN, "The credential lacks the right.", error)
            .also(StatusCode::NOT_FOUND, "There is no pool of this group.", error)
            .also(StatusCode::SERVICE_UNAVAILABLE, "Not known now; ask another site.", error);
        others.iter().fold(it, |it, (status, text)| it.also(*status, text, error)).at_hand()
    };
    let taken = [
        (StatusCode::CONFLICT, "All slots are taken, or the pool changes."),
        (StatusCode::UNPROCESSABLE_ENTITY, "The id of the node is not allowed."),
        (StatusCode::TOO_MANY_REQUESTS, "Too many requests wait at this site."),
    ];
    vec![
        queued(submit, "The request waits.", request),
        get("/v1/requests/{id}", "getRequest", "Watch a request", watch)
            .query::<WatchQuery>()
            .json::<Request>("The request.")
            .fails(&[UnknownRequest]),
        delete("/v1/requests/{id}", "cancelRequest", "Cancel a request", cancel)
            .json::<Request>("The request is over, and nothing of it is left.")
            .fails(&[UnknownRequest]),
        get("/v1/leases", "listLeases", "All leases", leases)
            .query::<ListQuery>()
            .answers("All leases.", Content::Pages("leases", list_of::<Lease>))
            .fails(&[UnknownPool]),
        delete(
            "/v1/leases/{id}",
            "releaseLease",
            "Release a lease by its id, or as an operator by its name",
            release,
        )
        .json::<Released>("The lease is released. Repeating the call is harmless.")
        .fails(&[UnknownRequest, InUse]),
        post("/v1/leases/{id}/renew", "renewLease", "Renew a lease", renew)
            .may_take::<Nothing>()
            .json::<Lease>("The lease with its new time.")
            .fails(&[Gone, UnknownRequest]),
        get("/v1/queue", "listQueue", "All waiting requests", queue)
            .query::<ListQuery>()
            .answers("Waiting requests, oldest first.", Content::Pages("queue", list_of::<Request>))
            .fails(&[UnknownPool]),
        get("/v1/history", "listHistory", "Past events", history::history)
            .query::<history::HistoryQuery>()
            .answers("Events, oldest first.", Content::Pages("history", list_of::<Happening>))
            .fails(&[UnknownPool, Unsupported, TooMany]),
        get("/v1/usage", "getUsage", "Unit-hours and waits", history::usage)
            .query::<history::UsageQuery>()
            .list::<UsageRow>("One row for each owner, pool or unit.")
            .fails(&[UnknownPool, Unsupported, TooMany]),
        get("/v1/events", "listenToEvents", "Follow events", events::events)
            .query::<EventsQuery>()
            .answers(
                "Server-sent events, until the client leaves.",
                Content::Text("text/event-stream"),
            )
            .fails(&[TooMany]),
        get(
            "/v1/fast",
            "connectFast",
            "Go on with frames instead of HTTP, for many calls at once",
            fast,
        )
        .also(StatusCode::SWITCHING_PROTOCOLS, "Frames follow.", Content::Nothing)
        .at_hand(),
        fleet(
            post("/v1/pre-reboot", "takeRebootSlot", "FleetLock: take a reboot slot", pre_reboot),
            &taken,
        ),
        fleet(
            post(
                "/v1/steady-state",
                "releaseRebootSlot",
                "FleetLock: give a reboot slot back",
                steady_state,
            ),
            &[],
        ),
    ]
}

fn cluster() -> Vec<Operation> {
    vec![
        get("/v1/members", "listMembers", "The sites", members)
            .query::<PageQuery>()
            .answers(
                "The sites, as this one sees them.",
                Content::Pages("members", list_of::<Member>),
            )
            .lenient(),
        delete(
            "/v1/members/{name}",
            "removeMember",
            "Remove a site from the cluster for good",
            remove_member,
        )
        .json::<MemberChanged>("The site is removed.")
        .fails(changes!(NotFound, Unsupported)),
        post(
            "/v1/members/{name}/{change}",
            "changeMember",
            "Drain, undrain or replace a site",
            change_member,
        )
        .json::<MemberChanged>("The site is changed.")
        .fails(changes!(NotFound)),
        get("/v1/health", "getHealth", "Problems and their solutions", health)
            .json::<Health>("The verdict of this site.")
            .lenient(),
        get("/v1/backup", "getBackup", "The configuration that the cluster keeps", backup)
            .json::<Backup>("The document.")
            .at_hand(),
        put("/v1/backup", "restoreBackup", "Add what a backup has and the cluster lacks", restore)
            .takes::<Backup>()
            .json::<Backup>("The configuration after the change.")
            .fails(changes!()),
    ]
}

fn pools_and_units() -> Vec<Operation> {
    use Code::UnknownPool;
    vec![
        get("/v1/pools", "listPools", "All pools", pools).list::<Pool>("All pools, by name."),
        get("/v1/pools/{name}", "getPool", "One pool", pool)
            .json::<Pool>("The pool.")
            .fails(&[UnknownPool]),
        put("/v1/pools/{name}", "putPool", "Create or change a pool", put_pool)
            .takes::<PutPool>()
            .json::<Pool>("The pool after the change.")
            .fails(changes!(UnknownPool)),
        delete("/v1/pools/{name}", "removePool", "Remove a pool", remove_pool)
            .json::<Removed>("The pool is removed.")
            .fails(changes!(UnknownPool)),
        put(
            "/v1/pools/{name}/quarantine/{unit}",
            "quarantineUnit",
            "Take a unit out of service",
            quarantine,
        )
        .takes::<PutQuarantine>()
        .json::<Pool>("The pool after the change.")
        .fails(changes!(UnknownPool, NotFound, Unsupported)),
        delete(
            "/v1/pools/{name}/quarantine/{unit}",
            "returnUnit",
            "Return a unit to service",
            return_unit,
        )
        .json::<Pool>("The pool after the change.")
        .fails(changes!(UnknownPool, NotFound, Unsupported)),
    ]
}

fn semaphores_and_gangs() -> Vec<Operation> {
    use Code::{
        Busy, Gone, InUse, Infeasible, Timeout, TooMany, UnknownGang, UnknownPool,
        UnknownSemaphore, Unsupported,
    };
    let one = "/v1/semaphores/{name}";
    let waits = |it: Operation, content| it.also(StatusCode::ACCEPTED, "The gang waits.", content);
    let gang_of = "/v1/gangs/{name}";
    vec![
        get("/v1/semaphores", "listSemaphores", "All semaphores", semaphores)
            .list::<Semaphore>("All semaphores, by name."),
        get(one, "getSemaphore", "One semaphore", semaphore)
            .json::<Semaphore>("The semaphore.")
            .fails(&[UnknownSemaphore]),
        put(one, "putSemaphore", "Create or reset a semaphore", put_semaphore)
            .takes::<PutSemaphore>()
            .json::<Semaphore>("The semaphore after the change.")
            .fails(changes!(UnknownSemaphore)),
        delete(one, "removeSemaphore", "Remove a semaphore", remove_semaphore)
            .json::<Removed>("The semaphore is removed.")
            .fails(changes!(UnknownSemaphore)),
        post(
            "/v1/semaphores/{name}/p",
            "takeFromSemaphore",
            "P: take units, and wait for them",
            take,
        )
        .may_take::<TakeSpec>()
        .json::<Taken>("The units are taken.")
        .fails(&[UnknownSemaphore, Infeasible, Busy, Timeout, TooMany]),
        post("/v1/semaphores/{name}/v", "addToSemaphore", "V: add units", add)
            .may_take::<AddSpec>()
            .json::<Added>("The units are added.")
            .fails(&[UnknownSemaphore, Infeasible]),
        get("/v1/gangs", "listGangs", "All gangs", gangs).list::<Gang>("All gangs, by name."),
        get(gang_of, "getGang", "One gang", gang).json::<Gang>("The gang.").fails(&[UnknownGang]),
        put(gang_of, "putGang", "Create or change a gang", put_gang)
            .takes::<PutGang>()
            .json::<Gang>("The gang after the change.")
            .fails(changes!(UnknownGang, UnknownPool, Infeasible, Unsupported)),
        delete(gang_of, "removeGang", "Remove a gang", remove_gang)
            .json::<Removed>("The gang is removed. A run of it goes on.")
            .fails(changes!(UnknownGang, Unsupported)),
        waits(
            post(
                "/v1/gangs/{name}/start",
                "startGang",
                "Ask for all that a gang needs",
                start_gang,
            )
            .may_take::<StartGang>()
            .json::<Started>("The gang may start, or its request is over.")
            .fails(&[
                UnknownGang,
                UnknownPool,
                Infeasible,
                Busy,
                Timeout,
                InUse,
                TooMany,
                Unsupported,
            ]),
            Content::Json(schema_of::<Started>),
        ),
        waits(
            post(
                "/v1/gangs/{name}/join",
                "joinGang",
                "Say that a member is there, still is, or leaves",
                join_gang,
            )
            .takes::<JoinGang>()
            .json::<Joined>("The member may run, or its run is over.")
            .fails(&[UnknownGang, UnknownPool, Infeasible, Gone, InUse, TooMany]),
            Content::Json(schema_of::<Joined>),
        ),
    ]
}

fn principals() -> Vec<Operation> {
    vec![
        get(
            "/v1/principal",
            "getPrincipal",
            "The principal of the credential, and its rules",
            console::principal,
        )
        .json::<Principal>("The principal.")
        .lenient(),
        get("/v1/tokens", "listTokens", "All principals", tokens::list)
            .list::<TokenView>("All principals.")
            .at_hand(),
        post("/v1/tokens", "createToken", "Create a principal with a token", tokens::create)
            .takes::<CreateToken>()
            .json::<MadeToken>("The principal. Its token is in this answer and nowhere else.")
            .fails(changes!(UnknownPool)),
        delete("/v1/tokens/{name}", "revokeToken", "End a principal", tokens::revoke)
            .json::<Removed>("No site accepts its token from now on.")
            .fails(changes!(NotFound)),
        get("/v1/rules", "listRules", "All rules", tokens::rules)
            .list::<RuleView>("All rules of all principals.")
            .at_hand(),
        post(
            "/v1/rules/{name}",
            "changeRules",
            "Add rules to a principal, or remove them",
            tokens::change,
        )
        .may_take::<PutRules>()
        .json::<TokenView>("The principal after the change.")
        .fails(changes!(NotFound, UnknownPool)),
        get("/v1/audit", "listAudit", "The audit log of this site", audit::audit)
            .query::<audit::AuditQuery>()
            .answers(
                "Entries, oldest first; with `verify`, the check.",
                Content::Json(audit::answer),
            )
            .at_hand(),
    ]
}

/// Paths that need no credential.
fn plain() -> Vec<Operation> {
    let plain = Content::Text("text/plain; charset=utf-8");
    vec![
        get("/metrics", "getMetrics", "Counters for Prometheus", metrics)
            .answers("Counters.", Content::Text("text/plain; version=0.0.4; charset=utf-8"))
            .fails(&[Code::Draining]),
        get("/healthz", "getLiveness", "Whether the site runs", livez)
            .answers("It runs.", plain)
            .fails(&[Code::Draining]),
        get("/livez", "getLivez", "The same as /healthz", livez)
            .answers("It runs.", plain)
            .fails(&[Code::Draining]),
        get("/readyz", "getReadiness", "Whether the site may grant", readyz)
            .answers("It may grant; the text names what is wrong elsewhere.", plain)
            .also(StatusCode::SERVICE_UNAVAILABLE, "It must not grant; the text says why.", plain),
        get("/openapi.json", "getDescription", "This document", description)
            .answers("This document.", Content::Json(schema_of::<serde_json::Value>)),
        get("/", "getConsole", "The console", console::page)
            .answers("A page.", Content::Text("text/html; charset=utf-8")),
        get("/console/{name}", "getConsoleFile", "A file of the console", console::file)
            .answers("A script.", Content::Text("text/javascript; charset=utf-8"))
            .answers("A style.", Content::Text("text/css; charset=utf-8"))
            .fails(&[Code::NotFound, Code::Malformed]),
    ]
}

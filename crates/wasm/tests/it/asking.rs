//! Components that ask for the network, as WebAssembly text. Tests of other crates use them too.

/// The error of `wasi:http` that says no.
const REQUEST_DENIED: u32 = 15;

/// Memory that the functions of the host write to.
const LIBC: &str = r#"
  (core module $libc (memory (export "memory") 1)
    (func (export "realloc") (param i32 i32 i32 i32) (result i32) (i32.const 4096)))
  (core instance $libc (instantiate $libc))
  (alias core export $libc "memory" (core memory $memory))
  (alias core export $libc "realloc" (core func $realloc))"#;

/// Exports what the module `$m` with the imports `with` gives as `run`.
fn run(with: &str) -> String {
    format!(
        r#"
  (core instance $i (instantiate $m (with "libc" (instance $libc)) (with "host" (instance {with}))))
  (func $run (result (result)) (canon lift (core func $i "run")))
  (instance $out (export "run" (func $run)))
  (export "wasi:cli/run@0.2.0" (instance $out))"#
    )
}

/// Makes a socket and takes a port of the loopback. Well where that ends with `wanted`, an error of
/// `wasi:sockets/network`; not well where there is none or another.
pub(crate) fn binds(port: u16, wanted: u32) -> String {
    let codes = "unknown access-denied not-supported invalid-argument out-of-memory timeout \
        concurrency-conflict not-in-progress would-block invalid-state new-socket-limit \
        address-not-bindable address-in-use remote-unreachable connection-refused connection-reset \
        connection-aborted datagram-too-large name-unresolvable temporary-resolver-failure \
        permanent-resolver-failure";
    let codes: String = codes
        .split_whitespace()
        .map(|code| format!("{code:?} "))
        .collect();
    let run = run(
        r#"(export "network" (func $network-core)) (export "create" (func $create-core))
           (export "bind" (func $bind-core))"#,
    );
    format!(
        r#"(component
  (import "wasi:sockets/network@0.2.0" (instance $types
    (export "network" (type (sub resource)))
    (type $e (enum {codes})) (export "error-code" (type (eq $e)))
    (type $f (enum "ipv4" "ipv6")) (export "ip-address-family" (type (eq $f)))
    (type $a (tuple u8 u8 u8 u8))
    (type $b (tuple u16 u16 u16 u16 u16 u16 u16 u16))
    (type $c (record (field "port" u16) (field "address" $a)))
    (export "ipv4-socket-address" (type $v4 (eq $c)))
    (type $d (record (field "port" u16) (field "flow-info" u32) (field "address" $b) (field "scope-id" u32)))
    (export "ipv6-socket-address" (type $v6 (eq $d)))
    (type $s (variant (case "ipv4" $v4) (case "ipv6" $v6)))
    (export "ip-socket-address" (type (eq $s)))))
  (alias export $types "network" (type $network))
  (alias export $types "error-code" (type $error))
  (alias export $types "ip-address-family" (type $family))
  (alias export $types "ip-socket-address" (type $address))
  (import "wasi:sockets/instance-network@0.2.0" (instance $instance
    (export "instance-network" (func (result (own $network))))))
  (import "wasi:sockets/tcp@0.2.0" (instance $tcp
    (export "tcp-socket" (type $socket (sub resource)))
    (export "[method]tcp-socket.start-bind" (func (param "self" (borrow $socket))
      (param "network" (borrow $network)) (param "local-address" $address) (result (result (error $error)))))))
  (alias export $tcp "tcp-socket" (type $socket))
  (import "wasi:sockets/tcp-create-socket@0.2.0" (instance $create
    (export "create-tcp-socket" (func (param "address-family" $family)
      (result (result (own $socket) (error $error)))))))
  {LIBC}
  (core func $network-core (canon lower (func $instance "instance-network")))
  (core func $create-core (canon lower (func $create "create-tcp-socket") (memory $memory)))
  (core func $bind-core (canon lower (func $tcp "[method]tcp-socket.start-bind") (memory $memory)))
  (core module $m
    (import "libc" "memory" (memory 1))
    (import "host" "network" (func $network (result i32)))
    (import "host" "create" (func $create (param i32 i32)))
    (import "host" "bind" (func $bind
      (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32)))
    (func $judge (param $code i32) (result i32)
      (i32.ne (local.get $code) (i32.const {wanted})))
    (func (export "run") (result i32)
      (call $create (i32.const 0) (i32.const 16))
      (if (i32.load8_u (i32.const 16)) (then (return (call $judge (i32.load8_u (i32.const 20))))))
      (call $bind (i32.load (i32.const 20)) (call $network) (i32.const 0) (i32.const {port})
        (i32.const 127) (i32.const 0) (i32.const 0) (i32.const 1)
        (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 32))
      (if (i32.load8_u (i32.const 32)) (then (return (call $judge (i32.load8_u (i32.const 33))))))
      (i32.const 1)))
  {run})"#
    )
}

/// The errors of `wasi:http`, in their order.
const HTTP_ERRORS: &str = r#"
    (type $d (record (field "rcode" (option string)) (field "info-code" (option u16))))
    (export "DNS-error-payload" (type $dns (eq $d)))
    (type $t (record (field "alert-id" (option u8)) (field "alert-message" (option string))))
    (export "TLS-alert-received-payload" (type $tls (eq $t)))
    (type $s (record (field "field-name" (option string)) (field "field-size" (option u32))))
    (export "field-size-payload" (type $size (eq $s)))
    (type $e (variant (case "DNS-timeout") (case "DNS-error" $dns) (case "destination-not-found")
      (case "destination-unavailable") (case "destination-IP-prohibited") (case "destination-IP-unroutable")
      (case "connection-refused") (case "connection-terminated") (case "connection-timeout")
      (case "connection-read-timeout") (case "connection-write-timeout") (case "connection-limit-reached")
      (case "TLS-protocol-error") (case "TLS-certificate-error") (case "TLS-alert-received" $tls)
      (case "HTTP-request-denied") (case "HTTP-request-length-required")
      (case "HTTP-request-body-size" (option u64)) (case "HTTP-request-method-invalid")
      (case "HTTP-request-URI-invalid") (case "HTTP-request-URI-too-long")
      (case "HTTP-request-header-section-size" (option u32)) (case "HTTP-request-header-size" (option $size))
      (case "HTTP-request-trailer-section-size" (option u32)) (case "HTTP-request-trailer-size" $size)
      (case "HTTP-response-incomplete") (case "HTTP-response-header-section-size" (option u32))
      (case "HTTP-response-header-size" $size) (case "HTTP-response-body-size" (option u64))
      (case "HTTP-response-trailer-section-size" (option u32)) (case "HTTP-response-trailer-size" $size)
      (case "HTTP-response-transfer-coding" (option string)) (case "HTTP-response-content-coding" (option string))
      (case "HTTP-response-timeout") (case "HTTP-upgrade-failed") (case "HTTP-protocol-error")
      (case "loop-detected") (case "configuration-error") (case "internal-error" (option string))))
    (export "error-code" (type $error (eq $e)))"#;

/// The module in it.
fn asker(authority: &str, times: u32) -> String {
    let length = authority.len();
    format!(
        r#"(core module $m
    (import "libc" "memory" (memory 1))
    (import "host" "fields" (func $fields (result i32)))
    (import "host" "request" (func $request (param i32) (result i32)))
    (import "host" "authority" (func $authority (param i32 i32 i32 i32) (result i32)))
    (import "host" "path" (func $path (param i32 i32 i32 i32) (result i32)))
    (import "host" "handle" (func $handle (param i32 i32 i32 i32)))
    (import "host" "subscribe" (func $subscribe (param i32) (result i32)))
    (import "host" "block" (func $block (param i32)))
    (import "host" "get" (func $get (param i32 i32)))
    (data (i32.const 1000) "/") (data (i32.const 1024) {authority:?})
    ;; The error of one request.
    (func $ask (result i32) (local $request i32) (local $future i32)
      (local.set $request (call $request (call $fields)))
      (if (call $authority (local.get $request) (i32.const 1) (i32.const 1024) (i32.const {length}))
        (then unreachable))
      (if (call $path (local.get $request) (i32.const 1) (i32.const 1000) (i32.const 1)) (then unreachable))
      (call $handle (local.get $request) (i32.const 0) (i32.const 0) (i32.const 0))
      (if (i32.load8_u (i32.const 0)) (then (return (i32.load8_u (i32.const 8)))))
      (local.set $future (i32.load (i32.const 8)))
      (call $block (call $subscribe (local.get $future)))
      (call $get (local.get $future) (i32.const 64))
      ;; There is an answer, nobody took it before, and it is an error.
      (if (i32.or (i32.eqz (i32.load8_u (i32.const 64)))
          (i32.or (i32.load8_u (i32.const 72)) (i32.eqz (i32.load8_u (i32.const 80))))) (then unreachable))
      (i32.load8_u (i32.const 88)))
    (func (export "run") (result i32) (local $left i32)
      (local.set $left (i32.const {times}))
      (loop $again
        (if (i32.ne (call $ask) (i32.const {REQUEST_DENIED})) (then (return (i32.const 1))))
        (br_if $again (local.tee $left (i32.sub (local.get $left) (i32.const 1)))))
      (i32.const 0)))"#
    )
}

/// Asks `authority` by HTTP, `times` times. Well where each answer is that it was denied.
pub(crate) fn asks(authority: &str, times: u32) -> String {
    let module = asker(authority, times);
    let run = run(
        r#"(export "fields" (func $fields-core)) (export "request" (func $request-core))
           (export "authority" (func $authority-core)) (export "path" (func $path-core))
           (export "handle" (func $handle-core))
           (export "subscribe" (func $subscribe-core)) (export "block" (func $block-core))
           (export "get" (func $get-core))"#,
    );
    format!(
        r#"(component
  (import "wasi:io/poll@0.2.0" (instance $poll
    (export "pollable" (type $p (sub resource)))
    (export "[method]pollable.block" (func (param "self" (borrow $p))))))
  (alias export $poll "pollable" (type $pollable))
  (import "wasi:http/types@0.2.0" (instance $http
    (export "fields" (type $f (sub resource)))
    (export "outgoing-request" (type $q (sub resource)))
    (export "request-options" (type (sub resource)))
    (export "incoming-response" (type $i (sub resource)))
    (export "future-incoming-response" (type $r (sub resource)))
    {HTTP_ERRORS}
    (export "[constructor]fields" (func (result (own $f))))
    (export "[constructor]outgoing-request" (func (param "headers" (own $f)) (result (own $q))))
    (export "[method]outgoing-request.set-authority" (func (param "self" (borrow $q))
      (param "authority" (option string)) (result (result))))
    (export "[method]outgoing-request.set-path-with-query" (func (param "self" (borrow $q))
      (param "path-with-query" (option string)) (result (result))))
    (export "[method]future-incoming-response.subscribe" (func (param "self" (borrow $r)) (result (own $pollable))))
    (export "[method]future-incoming-response.get" (func (param "self" (borrow $r))
      (result (option (result (result (own $i) (error $error)))))))))
  (alias export $http "outgoing-request" (type $request))
  (alias export $http "request-options" (type $options))
  (alias export $http "future-incoming-response" (type $future))
  (alias export $http "error-code" (type $error))
  (import "wasi:http/outgoing-handler@0.2.0" (instance $handler
    (export "handle" (func (param "request" (own $request)) (param "options" (option (own $options)))
      (result (result (own $future) (error $error)))))))
  {LIBC}
  (core func $fields-core (canon lower (func $http "[constructor]fields")))
  (core func $request-core (canon lower (func $http "[constructor]outgoing-request")))
  (core func $authority-core (canon lower (func $http "[method]outgoing-request.set-authority") (memory $memory)))
  (core func $path-core (canon lower (func $http "[method]outgoing-request.set-path-with-query") (memory $memory)))
  (core func $handle-core (canon lower (func $handler "handle") (memory $memory) (realloc $realloc)))
  (core func $subscribe-core (canon lower (func $http "[method]future-incoming-response.subscribe")))
  (core func $block-core (canon lower (func $poll "[method]pollable.block")))
  (core func $get-core (canon lower (func $http "[method]future-incoming-response.get")
    (memory $memory) (realloc $realloc)))
  {module}
  {run})"#
    )
}

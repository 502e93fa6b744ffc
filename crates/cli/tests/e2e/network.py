"""Run inside a cell that may reach `up.test` on one port: tries what it may and what it may not. A line for each."""

import socket
import ssl
import struct
import sys
import time
import urllib.request

port = int(sys.argv[1])
PROXY = ("127.0.0.1", 3128)


def attempt(name, what):
    try:
        print(f"{name}\t{what()}")
    except Exception as e:
        print(f"{name}\tfailed: {type(e).__name__} {e}")
    sys.stdout.flush()


def talk(address, *pieces, wait=5):
    s = socket.create_connection(address, timeout=wait)
    for piece in pieces:
        s.sendall(piece)
    answer = b""
    while True:
        try:
            more = s.recv(65536)
        except (ConnectionResetError, socket.timeout):
            break
        if not more:
            break
        answer += more
    return answer.decode("latin-1").replace("\r\n", "|") or "closed"


def talk_slowly(address, *pieces):
    s = socket.create_connection(address, timeout=5)
    for piece in pieces:
        s.sendall(piece)
        time.sleep(0.1)
    s.close()
    return "sent"


def http(host, path="/", more=""):
    return f"GET {path} HTTP/1.1\r\nHost: {host}\r\n{more}\r\n".encode()


def connect(authority, then=b""):
    s = socket.create_connection(PROXY, timeout=5)
    s.sendall(f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n".encode("latin-1"))
    answer = s.recv(4096).decode("latin-1")
    if " 200 " in answer.split("\r\n")[0] and then:
        s.sendall(then)
        try:
            answer += s.recv(4096).decode("latin-1") or "closed"
        except ConnectionResetError:
            answer += "closed"
    return answer.replace("\r\n", "|")


def socks(name, to=None):
    s = socket.create_connection(PROXY, timeout=5)
    s.sendall(b"\x05\x01\x00")
    if s.recv(2) != b"\x05\x00":
        return "no greeting"
    s.sendall(b"\x05\x01\x00\x03" + bytes([len(name)]) + name + struct.pack(">H", to or port))
    answer = s.recv(10)
    if answer[1] != 0:
        return f"refused {answer[1]}"
    s.sendall(http("up.test"))
    return s.recv(100).decode("latin-1").split("\r\n")[0]


def tls(name, address):
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    s = socket.create_connection(address, timeout=5)
    return context.wrap_socket(s, server_hostname=name)


def ask(name, kind):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.settimeout(3)
    question = b"".join(bytes([len(part)]) + part for part in name.encode().split(b".")) + b"\0"
    s.sendto(struct.pack(">HHHHHH", 7, 0x100, 1, 0, 0, 0) + question + struct.pack(">HH", kind, 1), ("127.0.0.1", 53))
    answer = s.recv(1500)
    return f"code {answer[3] & 15} answers {struct.unpack('>H', answer[6:8])[0]}"


here = ("up.test", port)
attempt("plain", lambda: urllib.request.urlopen(f"http://up.test:{port}/plain").read().decode())
attempt("post", lambda: urllib.request.urlopen(f"http://up.test:{port}/post", data=b"x" * 100000).read().decode())
attempt("connect", lambda: connect(f"up.test:{port}", http("up.test", "/connect")))
attempt("absolute", lambda: talk(PROXY, http("up.test", f"http://up.test:{port}/absolute")))
attempt("socks", lambda: socks(b"up.test"))
attempt("socks with a dot", lambda: socks(b"UP.test."))
attempt("redirect", lambda: urllib.request.urlopen(f"http://up.test:{port}/redirect").read())
attempt("other name", lambda: socket.getaddrinfo("evil.test", 80))
attempt("ask A", lambda: ask("up.test", 1))
attempt("ask AAAA", lambda: ask("up.test", 28))
attempt("ask TXT", lambda: ask("up.test", 16))
attempt("ask NULL", lambda: ask("up.test", 10))
attempt("ask A of another", lambda: ask("data.evil.test", 1))
attempt("address", lambda: talk(("127.0.0.1", port), http("up.test")))
attempt("address outside", lambda: talk(("1.1.1.1", port), http("up.test")))
attempt("connect to the address", lambda: connect(f"127.0.0.1:{port}"))
attempt("connect to another port", lambda: connect("up.test:22"))
attempt("connect to another", lambda: connect(f"evil.test:{port}"))
attempt("connect with a user", lambda: connect(f"up.test@evil.test:{port}"))
attempt("connect by a number", lambda: connect(f"2130706433:{port}"))
attempt("connect by hexadecimal", lambda: connect(f"0x7f.1:{port}"))
attempt("connect below", lambda: connect(f"up.test.evil.test:{port}"))
attempt("socks with a null", lambda: socks(b"evil.test\0.up.test"))
attempt("socks to another", lambda: socks(b"evil.test"))
attempt("socks to another port", lambda: socks(b"up.test", 22))
attempt("host of another", lambda: talk(here, http("evil.test", "/evil")))
attempt("target of another", lambda: talk(PROXY, http("up.test", f"http://evil.test:{port}/evil")))
attempt("host of another by proxy", lambda: talk(PROXY, http("evil.test", f"http://up.test:{port}/evil")))
attempt("second request", lambda: talk(here, http("up.test", "/first") + http("evil.test", "/evil")))
attempt("second request after a body", lambda: talk(
    here, b"POST /first HTTP/1.1\r\nHost: up.test\r\nContent-Length: 3\r\n\r\nabc" + http("evil.test", "/evil")))
attempt("two lengths", lambda: talk(
    here, b"POST /evil HTTP/1.1\r\nHost: up.test\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"))
attempt("two hosts", lambda: talk(here, b"GET /evil HTTP/1.1\r\nHost: up.test\r\nHost: evil.test\r\n\r\n"))
attempt("no host", lambda: talk(here, b"GET /evil HTTP/1.0\r\n\r\n"))
attempt("first line in pieces", lambda: talk_slowly(
    here, b"\x01GET /evil ", b"HT", b"TP/1.1\r\nHost: evil.test\r\n\r\n"))
attempt("other protocol in pieces", lambda: talk_slowly(here, b"\x01other ", b"protocol\n", b"HTTP/ is only text here\n"))
attempt("tls", lambda: tls("up.test", here))
attempt("tls for another", lambda: tls("evil.test", here))
attempt("tls without a name", lambda: tls(None, here))
attempt("udp", lambda: (lambda s: (s.settimeout(2), s.connect(here), s.send(b"x"), s.recv(1)))(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)))
print("end")

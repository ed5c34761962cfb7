package server

import (
	"bufio"
	"encoding/hex"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/celld/celld/openapi"
)

// tcpListen is the state of a listening socket in /proc/net/tcp.
const tcpListen = "0A"

// listening appends the listening sockets that r, in the form of /proc/net/tcp, names.
func listening(list []openapi.Port, r io.Reader) []openapi.Port {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 4 || fields[3] != tcpListen {
			continue
		}
		address, port, ok := strings.Cut(fields[1], ":")
		n, err := strconv.ParseUint(port, 16, 16)
		if !ok || err != nil {
			continue
		}
		p := openapi.Port{Port: int(n), Address: procAddress(address)}
		if !slices.Contains(list, p) {
			list = append(list, p)
		}
	}
	return list
}

// procAddress reads an address as the kernel prints it: 32-bit words in the machine's byte order, which is little-endian
// on all that celld runs on.
func procAddress(text string) string {
	b, err := hex.DecodeString(text)
	if err != nil || len(b)%4 != 0 {
		return text
	}
	for i := 0; i < len(b); i += 4 {
		slices.Reverse(b[i : i+4])
	}
	addr, ok := netip.AddrFromSlice(b)
	if !ok {
		return text
	}
	return addr.String()
}

package sqlrun

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// certificate writes a key and a certificate that the server may read.
func certificate(t *testing.T, dir string) (key, cert string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "sql"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	key, cert = filepath.Join(dir, "key.pem"), filepath.Join(dir, "cert.pem")
	for file, block := range map[string]*pem.Block{key: {Type: "PRIVATE KEY", Bytes: secret}, cert: {Type: "CERTIFICATE", Bytes: der}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return key, cert
}

func TestTLS(t *testing.T) {
	root := folder(t)
	key, cert := certificate(t, root)
	p := ownServer(t, root)
	p.more = []string{"--ssl-key=" + key, "--ssl-cert=" + cert}
	socket, err := p.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	rows(t, connected(t, p), "CREATE USER u@localhost IDENTIFIED BY 'secret' REQUIRE SSL; GRANT ALL ON *.* TO u@localhost")
	plain, err := shared.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	with, without := proxy(t, socket, false), proxy(t, plain, false)
	for dsn, encrypted := range map[string]bool{
		"root@tcp(" + with + ")/?tls=skip-verify":                           true,
		"root@tcp(" + with + ")/?tls=preferred":                             true,
		"u:secret@tcp(" + with + ")/?tls=skip-verify":                       true,
		"root@tcp(" + proxy(t, socket, true) + ")/?tls=skip-verify":         true,
		"root@tcp(" + with + ")/":                                           false,
		"root@tcp(" + without + ")/?tls=preferred":                          false,
		"u:secret@tcp(" + with + ")/?tls=skip-verify&charset=utf8mb4":       true,
		"u:secret@tcp(" + with + ")/?tls=skip-verify&sql_mode=%27%27":       true,
		"u:secret@tcp(" + with + ")/?tls=skip-verify&maxAllowedPacket=1000": true,
	} {
		server, err := NewServer(Config{DSN: dsn})
		if err != nil {
			t.Fatal(err)
		}
		s := sessionOn(t, server)
		if got := rows(t, s, "SHOW STATUS LIKE 'Ssl_cipher'"); (got[0][1] != "") != encrypted {
			t.Errorf("%s: the cipher is %q", dsn, got)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		if err := s.Run(ctx, "SELECT SLEEP(600)", new(recorder)); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrLost) {
			t.Errorf("%s: stopped: %v", dsn, err)
		}
		cancel()
		says(t, s, "SELECT LENGTH(REPEAT('x', 1000000)), REPEAT('y', 100000)", []any{"1000000", strings.Repeat("y", 100000)})
	}
	for dsn, want := range map[string]string{
		"root@tcp(" + with + ")/?tls=true":               "certificate",
		"root@tcp(" + without + ")/?tls=true":            "TLS",
		"u:wrong@tcp(" + with + ")/?tls=skip-verify":     "1045",
		"u:secret@tcp(" + with + ")/?tls=false":          "1045",
		"u:secret@tcp(" + without + ")/?tls=skip-verify": "TLS",
	} {
		server, err := NewServer(Config{DSN: dsn})
		if err != nil {
			t.Fatal(err)
		}
		if err := sessionOn(t, server).Run(t.Context(), "SELECT 1", new(recorder)); !errors.Is(err, ErrNoServer) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", dsn, err, want)
		}
	}
}

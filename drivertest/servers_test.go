package drivertest

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"checkpointdb/internal/blobsuite"

	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/fsouza/fake-gcs-server/fakestorage"
	"github.com/versity/versitygw/backend/meta"
	"github.com/versity/versitygw/backend/posix"
	"github.com/versity/versitygw/embedgw"

	_ "checkpointdb/buckets/cloud"
)

// Each of these starts a server with an empty bucket named "bucket", sets the
// environment so that its URLs open, and ends it with the test.

// startVersity returns the endpoint of a server of S3.
func startVersity(t *testing.T) string {
	t.Helper()
	const access, secret, region = "access", "secret-of-the-test", "us-east-1"
	t.Setenv("AWS_ACCESS_KEY_ID", access)
	t.Setenv("AWS_SECRET_ACCESS_KEY", secret)
	root := t.TempDir()
	t.Chdir(root) // as the backend does, but this is undone
	backend, err := posix.New(root, meta.XattrMeta{}, posix.PosixOpts{})
	if err != nil {
		t.Fatal(err)
	}
	addr := freeAddr(t)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- embedgw.RunVersityGW(ctx, backend, &embedgw.Config{
			RootUserAccess: access, RootUserSecret: secret, Region: region, Ports: []string{addr},
			MaxConnections: 1000, MaxRequests: 500, MultipartMaxParts: 10_000, Quiet: true,
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("versitygw: %v", err)
		}
	})
	waitFor(t, addr)
	endpoint := "http://" + addr
	client := s3.New(s3.Options{
		BaseEndpoint: aws.String(endpoint), Region: region, UsePathStyle: true,
		Credentials: credentials.NewStaticCredentialsProvider(access, secret, ""),
	})
	if _, err := client.CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: aws.String("bucket")}); err != nil {
		t.Fatal(err)
	}
	return endpoint
}

// startStrict puts a strict front before an endpoint of S3 and returns its own.
func startStrict(t *testing.T, endpoint string) string {
	t.Helper()
	target, err := url.Parse(endpoint)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Host = r.In.Host // which the client has signed
		},
		ErrorLog: log.New(io.Discard, "", 0), // of uploads that are cancelled
	}
	front := httptest.NewServer(blobsuite.Strict(http.StatusNotImplemented, proxy))
	t.Cleanup(front.Close)
	return front.URL
}

// startGCS starts a server of GCS.
func startGCS(t *testing.T) {
	t.Helper()
	addr := freeAddr(t)
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	var number uint16
	if _, err := fmt.Sscan(port, &number); err != nil {
		t.Fatal(err)
	}
	server, err := fakestorage.NewServerWithOptions(fakestorage.Options{
		Scheme: "http", Host: host, Port: number,
		PublicHost: addr, // else it serves no reads there
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	server.CreateBucketWithOpts(fakestorage.CreateBucketOpts{Name: "bucket"})
	t.Setenv("STORAGE_EMULATOR_HOST", addr)
}

const azurite = "azurite@3.35.0"

// startAzure starts a server of Azure Blob Storage and returns its address.
func startAzure(t *testing.T) string {
	t.Helper()
	for _, program := range []string{"node", "npm"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("Azurite needs Node and npm: %v", err)
		}
	}
	// npm keeps what it has installed. It is asked for the program, instead of
	// running it, so that there is one child, which can be ended.
	script, err := exec.Command("npm", "exec", "--yes", "--package", azurite, "--call", "command -v azurite-blob").Output()
	if err != nil {
		t.Skipf("npm can't install %s: %v: %s", azurite, err, stderr(err))
	}
	addr := freeAddr(t)
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	const account = "account"
	secret := base64.StdEncoding.EncodeToString([]byte("secret of the test"))
	server := exec.Command("node", strings.TrimSpace(string(script)), "--silent", "--disableTelemetry",
		"--blobHost", host, "--blobPort", port, "--inMemoryPersistence", "--skipApiVersionCheck")
	server.Dir = t.TempDir()
	server.Env = append(os.Environ(), "AZURITE_ACCOUNTS="+account+":"+secret)
	output, err := os.Create(filepath.Join(t.TempDir(), "output"))
	if err != nil {
		t.Fatal(err)
	}
	defer output.Close()
	server.Stdout, server.Stderr = output, output
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait()
		if t.Failed() {
			text, _ := os.ReadFile(output.Name())
			t.Logf("Azurite said:\n%s", text)
		}
	})
	waitFor(t, addr)
	t.Setenv("AZURE_STORAGE_ACCOUNT", account)
	t.Setenv("AZURE_STORAGE_KEY", secret)
	credential, err := azblob.NewSharedKeyCredential(account, secret)
	if err != nil {
		t.Fatal(err)
	}
	client, err := azblob.NewClientWithSharedKeyCredential("http://"+addr+"/"+account, credential, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.CreateContainer(t.Context(), "bucket", nil); err != nil {
		t.Fatal(err)
	}
	return addr
}

func stderr(err error) []byte {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.Stderr
	}
	return nil
}

// freeAddr returns an address on loopback that nobody listens on.
func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// waitFor returns when somebody listens on addr.
func waitFor(t *testing.T, addr string) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); ; {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			conn.Close()
			return
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

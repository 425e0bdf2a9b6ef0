package main

import (
	"testing"
	"time"

	"checkpointdb"
)

func TestAge(t *testing.T) {
	now = func() time.Time { return nowInTests }
	for d, want := range map[time.Duration]string{
		0:                             "0s ago",
		-59 * time.Second:             "59s ago",
		-90 * time.Second:             "1m ago",
		-3*time.Hour - 59*time.Minute: "3h ago",
		-364 * 24 * time.Hour:         "364d ago",
		-800 * 24 * time.Hour:         "2y ago",
		30 * time.Second:              "in 30s",
		26 * time.Hour:                "in 1d",
	} {
		if got := age(nowInTests.Add(d)); got != want {
			t.Errorf("%s from now: %q, want %q", d, got, want)
		}
	}
	// Times that the contract allows and a Duration cannot span.
	for _, millis := range []int64{-8.64e15, 8.64e15} {
		if got := age(time.UnixMilli(millis)); got != "292y ago" && got != "in 292y" {
			t.Error(got)
		}
	}
}

func TestStamp(t *testing.T) {
	for want, at := range map[string]time.Time{
		"2026-03-01T12:00:00Z":           nowInTests.In(time.FixedZone("", 3600)),
		"2026-03-01T12:00:00.000000001Z": nowInTests.Add(1),
		"275760-09-13T00:00:00Z":         time.UnixMilli(8.64e15),
	} {
		if got := stamp(at); got != want {
			t.Errorf("stamp(%s) = %s, want %s", at, got, want)
		}
	}
	if stamp(time.Time{}) != "" {
		t.Error("no time has a stamp")
	}
}

func TestSpark(t *testing.T) {
	growth := func(pairs ...int64) (list []checkpointdb.Growth) {
		for i := 0; i < len(pairs); i += 2 {
			list = append(list, checkpointdb.Growth{CreatedAt: time.UnixMilli(pairs[i]), Bytes: pairs[i+1]})
		}
		return list
	}
	for _, test := range []struct {
		growth []checkpointdb.Growth
		want   string
	}{
		{nil, ""},
		{growth(0, 0), "····"},
		{growth(0, 5), "█···"},
		{growth(0, 80, 1000, 40), "█··▄"},
		{growth(1000, 1, 0, 80), "█··▁"}, // the order of the chain is not that of the times
		{growth(0, 10, 300, 20, 500, 0, 900, 80), "▁▂·█"},
		{growth(-8.64e15, 1, 8.64e15, 1), "█··█"},
	} {
		if got := spark(test.growth, 4); got != test.want {
			t.Errorf("spark(%v) = %s, want %s", test.growth, got, test.want)
		}
	}
}

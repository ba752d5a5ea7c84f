package main

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
	"unsafe"
)

// A plan is what one connection sends. It has one operation under way at a time: one request, or several in turn.
type plan interface {
	// start returns the first bytes to send.
	start() []byte
	// frame returns the length of the first complete answer in data, or 0 when there is none yet.
	frame(data []byte) (int, error)
	// next takes one complete answer; both it and the bytes of the last request may be overwritten afterwards.
	next(answer []byte) (step, error)
}

// A step is what follows an answer.
type step struct {
	request  []byte // to send; nil when further answers are to come first
	messages int    // that this answer completed
	ended    bool   // the operation is complete, so its latency counts
}

// A helper is a plan whose answers count for nothing and that is not waited for: it serves the other connections.
type helper interface{ isHelper() }

type connection struct {
	descriptor int
	plan       plan
	received   []byte // of an answer that is not complete
	unsent     []byte
	began      time.Time // of the operation under way
}

const (
	readBytes    = 1 << 20
	drainSeconds = 5
)

// drive keeps all plans busy from one thread: sockets that never block and one epoll, so that the load costs less than
// any server. Operations that are under way at the end are completed, but do not count.
func drive(given command, plans []plan) (seen window, err error) {
	poll, err := syscall.EpollCreate1(0)
	if err != nil {
		return seen, err
	}
	defer syscall.Close(poll)
	connections, undone := make(map[int32]*connection, len(plans)), 0
	defer func() {
		for descriptor := range connections {
			syscall.Close(int(descriptor))
		}
	}()
	for _, plan := range plans {
		descriptor, err := connect(given.Port)
		if err != nil {
			return seen, err
		}
		connections[int32(descriptor)] = &connection{descriptor: descriptor, plan: plan}
		if _, ok := plan.(helper); !ok {
			undone++
		}
		event := syscall.EpollEvent{Events: syscall.EPOLLIN, Fd: int32(descriptor)}
		if err := syscall.EpollCtl(poll, syscall.EPOLL_CTL_ADD, descriptor, &event); err != nil {
			return seen, err
		}
	}

	buffer := make([]byte, readBytes)
	events := make([]syscall.EpollEvent, 1024)
	seen.latencies = make([]time.Duration, 0, 1<<20)
	now := time.Now()
	begin := now.Add(seconds(given.WarmSeconds))
	end := begin.Add(seconds(given.Seconds))
	counting, ending := false, false
	for _, one := range connections {
		one.began = now
		if err := one.send(poll, one.plan.start()); err != nil {
			return seen, err
		}
	}
	for undone > 0 {
		wait := begin.Sub(now)
		if ending {
			wait = end.Add(seconds(drainSeconds)).Sub(now)
		} else if counting {
			wait = end.Sub(now)
		}
		ready, err := await(poll, events, wait)
		if err != nil {
			return seen, err
		}
		now = time.Now()
		if !counting && !now.Before(begin) {
			counting, begin = true, now
			end = begin.Add(seconds(given.Seconds))
			seen.operations, seen.messages = 0, 0
			fmt.Println(`{"event":"begin"}`)
		}
		isOver := !now.Before(end)
		if given.Operations > 0 {
			isOver = seen.operations >= given.Operations
		}
		if counting && !ending && isOver {
			ending, end = true, now
			seen.seconds = end.Sub(begin).Seconds()
			fmt.Println(`{"event":"end"}`)
		}
		if ending && now.Sub(end) > seconds(drainSeconds) {
			return seen, errors.New("some requests were never answered")
		}
		for _, event := range events[:ready] {
			one := connections[event.Fd]
			if event.Events&syscall.EPOLLOUT != 0 {
				if err := one.flush(poll); err != nil {
					return seen, err
				}
			}
			if event.Events&^syscall.EPOLLOUT == 0 {
				continue
			}
			isDone, err := one.receive(poll, buffer, &seen, begin, ending)
			if err != nil {
				return seen, err
			}
			if isDone {
				undone--
				delete(connections, event.Fd)
				syscall.Close(one.descriptor)
			}
		}
	}
	return seen, nil
}

// await returns how many events there are. No call into Go's scheduler, as there is nothing else to run.
func await(poll int, events []syscall.EpollEvent, wait time.Duration) (int, error) {
	milliseconds := max(0, wait.Milliseconds())
	count, _, failure := syscall.RawSyscall6(
		syscall.SYS_EPOLL_PWAIT, uintptr(poll), uintptr(unsafe.Pointer(&events[0])), uintptr(len(events)), uintptr(milliseconds), 0, 0)
	if failure == syscall.EINTR {
		return 0, nil
	}
	if failure != 0 {
		return 0, os.NewSyscallError("epoll_pwait", failure)
	}
	return int(count), nil
}

// receive reads once, takes the answers that are complete and sends what follows. It reports whether the connection is done.
func (one *connection) receive(poll int, buffer []byte, seen *window, begin time.Time, ending bool) (bool, error) {
	count, err := read(one.descriptor, buffer)
	if err != nil || count == 0 {
		return false, err
	}
	data := buffer[:count]
	if len(one.received) > 0 {
		one.received = append(one.received, data...)
		data = one.received
	}
	for len(data) > 0 {
		length, err := one.plan.frame(data)
		if err != nil {
			return false, err
		}
		if length == 0 {
			break
		}
		follows, err := one.plan.next(data[:length])
		if err != nil {
			return false, err
		}
		data = data[length:]
		if !ending {
			seen.messages += follows.messages
		}
		if follows.ended {
			if ending {
				return true, nil
			}
			now := time.Now()
			seen.operations++
			if !one.began.Before(begin) {
				seen.latencies = append(seen.latencies, now.Sub(one.began))
			}
			one.began = now
		}
		if follows.request != nil {
			if err := one.send(poll, follows.request); err != nil {
				return false, err
			}
		}
	}
	one.received = append(one.received[:0], data...)
	return false, nil
}

func (one *connection) send(poll int, request []byte) error {
	if len(one.unsent) > 0 {
		one.unsent = append(one.unsent, request...)
		return nil
	}
	sent, err := write(one.descriptor, request)
	if err != nil || sent == len(request) {
		return err
	}
	one.unsent = append([]byte(nil), request[sent:]...)
	return one.listenFor(poll, syscall.EPOLLIN|syscall.EPOLLOUT)
}

func (one *connection) flush(poll int) error {
	sent, err := write(one.descriptor, one.unsent)
	if err != nil {
		return err
	}
	one.unsent = one.unsent[sent:]
	if len(one.unsent) > 0 {
		return nil
	}
	return one.listenFor(poll, syscall.EPOLLIN)
}

func (one *connection) listenFor(poll int, events uint32) error {
	event := syscall.EpollEvent{Events: events, Fd: int32(one.descriptor)}
	return syscall.EpollCtl(poll, syscall.EPOLL_CTL_MOD, one.descriptor, &event)
}

// read returns how many bytes have come, which may be none when the socket does not block.
func read(descriptor int, buffer []byte) (int, error) {
	count, _, failure := syscall.RawSyscall(
		syscall.SYS_READ, uintptr(descriptor), uintptr(unsafe.Pointer(&buffer[0])), uintptr(len(buffer)))
	if failure == syscall.EAGAIN {
		return 0, nil
	}
	if failure != 0 {
		return 0, os.NewSyscallError("read", failure)
	}
	if count == 0 {
		return 0, errors.New("the server closed a connection")
	}
	return int(count), nil
}

// write returns how many bytes the socket took, which may be none.
func write(descriptor int, data []byte) (int, error) {
	count, _, failure := syscall.RawSyscall(
		syscall.SYS_WRITE, uintptr(descriptor), uintptr(unsafe.Pointer(&data[0])), uintptr(len(data)))
	if failure == syscall.EAGAIN {
		return 0, nil
	}
	if failure != 0 {
		return 0, os.NewSyscallError("write", failure)
	}
	return int(count), nil
}

// connect returns a socket that does not block.
func connect(port int) (int, error) {
	descriptor, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	address := syscall.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}
	if err := syscall.Connect(descriptor, &address); err != nil {
		return 0, err
	}
	if err := syscall.SetsockoptInt(descriptor, syscall.IPPROTO_TCP, syscall.TCP_NODELAY, 1); err != nil {
		return 0, err
	}
	return descriptor, syscall.SetNonblock(descriptor, true)
}

func seconds(given float64) time.Duration { return time.Duration(given * float64(time.Second)) }

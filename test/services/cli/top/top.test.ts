/* Tests of `sluice top` against a running service, in a pipe and on a pseudo terminal. */

import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import { expect, it, onTestFinished } from 'vitest'
import type { Snapshot } from '#services/cli/top/frame.ts'
import { type Admin, openAdmin, secretOf } from '../../../support/admin.ts'
import { ENVIRONMENT } from '../../../support/processes/environment.ts'
import { LAUNCHER } from '../../../support/processes/sluice.ts'
import { sluiceHere } from '../../../support/processes/sluice-here.ts'
import { ECHO_MODEL, startStack, until } from '../../../support/stack.ts'

/** Escape sequences that enter and leave full-screen mode: alternate screen, cursor, line wrap. */
const ENTER = '\x1b[?1049h\x1b[?25l\x1b[?7l'
const LEAVE = '\x1b[?7h\x1b[?25h\x1b[?1049l'
const ENDLESS = '!echo tokens=100000 delay_ms=40'

const topWith = (url: string, secret: string) => {
  return (...args: string[]) => sluiceHere(['top', ...args], { SLUICE_URL: url, SLUICE_API_KEY: secret })
}

async function startWithJobs(): Promise<{ admin: Admin; running: string; waiting: string; theirs: string }> {
  const admin = await openAdmin()
  onTestFinished(() => admin[Symbol.asyncDispose]())
  const running = await admin.submit('alice', ENDLESS)
  const waiting = await admin.submit('alice', 'x', { run_at: Math.floor(Date.now() / 1_000) + 3_600 })
  const theirs = await admin.submit('bob', ENDLESS)
  for (const [user, id] of [
    ['alice', running],
    ['bob', theirs],
  ] as const) {
    await until(async () => (await admin.job(user, id)).status === 'in_progress')
  }
  return { admin, running, waiting, theirs }
}

it('sluice top --once prints the jobs of all projects for an admin key, and the jobs of one project for any other key', async () => {
  const { admin, running, waiting, theirs } = await startWithJobs()
  const topAs = (user: string) => topWith(admin.stack.url, secretOf(user))
  const read = async (user: string, ...args: string[]) => {
    const { code, err, lines } = await topAs(user)(...args)
    expect({ code, err, count: lines.length }).toEqual({ code: 0, err: '', count: 1 })
    return lines[0] as unknown as Snapshot
  }
  // The numbers of running jobs come from heartbeats of the workers, so the test waits for the next heartbeat.
  await until(async () => {
    const { pools, models } = await read('op')
    return pools?.find(({ id }) => id === 'inference')?.running === 2 && models[0]?.running === 2
  })
  const all = await read('op', '--once')
  expect(all).toMatchObject({ object: 'top', sees: 'all', has_more_jobs: false })
  expect(all.jobs?.map(({ id }) => id)).toEqual([theirs, running, waiting])
  expect(all.models).toEqual([
    { id: 'echo-1', workers: 1, capacity: expect.any(Number), running: 2, waiting: 0, paused: false },
  ])
  expect(all.workers?.map(({ role }) => role)).toContain('inference')
  const own = await read('alice')
  expect(own).toMatchObject({ sees: 'own', pools: null, workers: null })
  expect(own.jobs?.map(({ id }) => id)).toEqual([running, waiting])
  expect(await topAs('nobody')('--once')).toMatchObject({
    code: 5,
    lines: [],
    err: expect.stringContaining('sluice keys create'),
  })
  expect(await topAs('op')('--interval', '0')).toMatchObject({
    code: 2,
    err: expect.stringContaining('from 1 to 3600'),
  })
})

it('sluice top refreshes, sorts, adapts to a new terminal size and restores the terminal', async () => {
  const { admin, running } = await startWithJobs()
  const ran = await onTerminal(
    ['top', '--interval', '1'],
    { SLUICE_URL: admin.stack.url, SLUICE_API_KEY: secretOf('op') },
    [
      { waitFor: running.slice(0, 20), send: 'a' },
      { waitFor: 'age↓', resize: [30, 61] },
      { waitFor: 'all projects · …', send: 'q' },
    ],
  )
  expect(ran.code).toBe(0)
  expect(ran.isCooked).toBe(true)
  expect(ran.text.startsWith(ENTER)).toBe(true)
  expect(ran.text.endsWith(LEAVE)).toBe(true)
  expect(ran.text).toContain('\x1b[2mjob ')
  expect(ran.text.split('\x1b[?2026h').length).toBe(ran.text.split('\x1b[?2026l').length)
})

it.each([
  { how: 'Ctrl-C', step: { send: '\x03' }, code: 130 },
  { how: 'a signal', step: { signal: 15 }, code: -15 },
])('sluice top restores the terminal after $how, and omits colours if NO_COLOR is set', async ({ step, code }) => {
  await using stack = await startStack({ models: [ECHO_MODEL] })
  const env = { SLUICE_URL: stack.url, SLUICE_API_KEY: 'sk-test-0123456789', NO_COLOR: '1' }
  const ran = await onTerminal(['top'], env, [{ waitFor: 'No running or queued', ...step }])
  expect(ran).toMatchObject({ code, isCooked: true })
  expect(ran.text.endsWith(LEAVE)).toBe(true)
  expect(ran.text).not.toContain('\x1b[2m')
})

/**
 * A step of a terminal session: when new output matches the regular expression `waitFor`, the test sends input or a signal, or resizes the
 * terminal.
 */
interface Step {
  readonly waitFor: string
  readonly send?: string
  readonly signal?: number
  /** New size of the terminal as rows and columns. */
  readonly resize?: readonly [number, number]
}

/**
 * Runs `sluice` on a pseudo terminal of 24 rows and 80 columns. `isCooked` is true if the command has switched the terminal back to line
 * mode.
 */
async function onTerminal(args: string[], env: Record<string, string>, steps: readonly Step[]) {
  const script = [process.execPath, LAUNCHER, ...args]
  const plan = JSON.stringify({ script, steps })
  const environment = { ...ENVIRONMENT, TERM: 'xterm-256color', ...env }
  const { stdout } = await promisify(execFile)('python3', ['-c', TERMINAL, plan], { env: environment, timeout: 55_000 })
  return JSON.parse(stdout) as { code: number; text: string; isCooked: boolean }
}

const TERMINAL = `
import fcntl, json, os, pty, re, select, struct, subprocess, sys, termios, time
plan = json.loads(sys.argv[1])
ours, theirs = pty.openpty()
size = lambda rows, columns: fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack('HHHH', rows, columns, 0, 0))
size(24, 80)
def own():
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
child = subprocess.Popen(plan['script'], stdin=theirs, stdout=theirs, stderr=theirs, preexec_fn=own)
seen, since, end = b'', 0, time.time() + 45
def more():
    global seen
    if not select.select([ours], [], [], 0.1)[0]: return False
    seen += os.read(ours, 65536)
    return True
for step in plan['steps']:
    while not re.search(step['waitFor'], seen[since:].decode('utf8', 'ignore')):
        if time.time() > end or child.poll() is not None: break
        more()
    since = len(seen)
    if 'send' in step: os.write(ours, step['send'].encode())
    if 'resize' in step: size(*step['resize'])
    if 'signal' in step: child.send_signal(step['signal'])
while child.poll() is None and time.time() < end: more()
if child.poll() is None: child.kill()
while more(): pass
cooked = bool(termios.tcgetattr(theirs)[3] & termios.ICANON)
print(json.dumps({'code': child.wait(), 'text': seen.decode('utf8', 'ignore'), 'isCooked': cooked}))
`

/* Regression tests of attacks on the sandboxes for code, and on the streaming of their output. */

import { once } from 'node:events'
import { existsSync, readFileSync } from 'node:fs'
import { createServer, get } from 'node:http'
import type { AddressInfo } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { afterAll, beforeAll, describe, expect, it, onTestFinished } from 'vitest'
import { endWithin, framePieces, writePieces } from '#services/ingress/http/reply.ts'
import type { Sandbox } from '#shared/sandbox/sandbox.ts'
import { Quota, ScratchFile } from '#shared/sandbox/wasm/inside/wasi/stored-files.ts'
import { openSandbox, PREPARE_MS } from '../../support/sandbox/adapters.ts'
import { runCode } from '../../support/sandbox/runs.ts'
import { until } from '../../support/stack.ts'

const MIB = 1024 * 1024
const RUN_MS = 30_000
const LAST_WORDS = 'data: too slow\n\n'

describe.each(['zygote', 'wasm'] as const)('code with unusual errors and output, in the %s sandbox', (name) => {
  let sandbox: Sandbox
  let missing: string | undefined
  beforeAll(async () => {
    const opened = await openSandbox(name)
    if (typeof opened === 'string') missing = opened
    else sandbox = opened
  }, PREPARE_MS)
  afterAll(() => sandbox?.close())

  const cases = [
    {
      what: 'prints an exception that overrides the attributes exceptions and with_traceback',
      code: `
class Failed(Exception):
    exceptions = ['no', 'group']
    with_traceback = __setattr__ = None
print('kept', end='')
raise Failed('why')`,
      expected: { exit_code: 1, stdout: 'kept', stderr: expect.stringMatching(/^Traceback.*line 6.*Failed: why\n$/s) },
    },
    {
      what: 'prints the original exception and the exception of a failed exception hook',
      code: `
import sys
def hook(*_): raise ValueError('of the hook')
sys.excepthook = hook
print('kept', end='')
raise KeyError('of the program')`,
      expected: { exit_code: 1, stdout: 'kept', stderr: expect.stringMatching(/'of the program'.*of the hook\n$/s) },
    },
    {
      what: 'exits with the status that an exception hook sets',
      code: "import sys\nsys.excepthook = lambda *_: sys.exit(7)\nprint('kept', end='')\nraise KeyError",
      expected: { exit_code: 7, stdout: 'kept', stderr: '' },
    },
    {
      what: 'returns the text that was printed before the code replaced sys.stdout',
      code: "import sys, io\nprint('kept', end='')\nsys.stdout = io.StringIO()\nprint('not shown')",
      expected: { exit_code: 0, stdout: 'kept', stderr: '' },
    },
    {
      what: 'returns the printed text even if the exit status cannot be converted to a string',
      code: "class Status:\n    __str__ = None\nprint('kept', end='')\nraise SystemExit(Status())",
      expected: { exit_code: 1, stdout: 'kept' },
    },
    {
      what: 'reports the correct line of an error below form feeds and Unicode line separators',
      code: "import re\n\fx = 'a\u2028b\u0085c\fd'\ndef f():\n    return 1 / 0\nf()\n",
      expected: {
        exit_code: 1,
        stderr: expect.stringMatching(/line 5, in <module>\n {4}f\(\)\n.*\n {4}return 1 \/ 0\n/s),
      },
    },
    {
      what: 'truncates long output between characters, never within a character',
      code: "print('€' * 400_000)",
      expected: { stdout: expect.stringMatching(/^€{349525}\n\[output truncated: 1200001 bytes in all\]\n$/) },
    },
  ]
  for (const { what, code, expected } of cases) {
    it(what, { timeout: RUN_MS }, async (context) => {
      context.skip(missing !== undefined, missing)
      expect(await runCode(sandbox, code)).toMatchObject(expected)
    })
  }

  it('stays within the limits of its run, even if it writes a plot byte by byte', {
    timeout: 3 * RUN_MS,
  }, async (context) => {
    context.skip(missing !== undefined, missing)
    const code = `
import os
os.write(3, b'P' + (4 << 20).to_bytes(4, 'big'))
for _ in range(1_500_000): os.write(3, b'x')
print('end')`
    expect(await runCode(sandbox, code, { timeoutMs: RUN_MS })).toMatchObject({ exit_code: 0, stdout: 'end\n' })
  })
})

describe('a sandbox fork server that was killed', () => {
  it('leaves no directory of its runs behind', { timeout: PREPARE_MS }, async (context) => {
    const sandbox = await openSandbox('zygote')
    if (typeof sandbox === 'string') return context.skip(sandbox)
    const children = readFileSync(`/proc/self/task/${process.pid}/children`, 'utf8').trim().split(' ')
    const commands = children.map((pid) => ({ pid, args: readFileSync(`/proc/${pid}/cmdline`, 'utf8').split('\0') }))
    const zygote = commands.find(({ args }) => args.includes('/opt/sandbox/zygote.py'))
    const directory = zygote?.args[zygote.args.indexOf('--bind') + 1] ?? ''
    expect(existsSync(directory)).toBe(true)
    process.kill(Number(zygote?.pid), 'SIGKILL')
    onTestFinished(() => sandbox.close())
    await until(() => !existsSync(directory))
  })
})

describe('a truncated file of the WebAssembly sandbox', () => {
  it('releases the memory of the removed content', async () => {
    const quota = new Quota({ bytes: 8 * MIB, nodes: 64, fileBytes: 8 * MIB })
    const heldBefore = heldBytes()
    const files = Array.from({ length: 32 }, () => {
      const file = new ScratchFile(quota)
      file.resize(8 * MIB)
      file.resize(0)
      return file
    })
    // V8 frees array buffers in a background thread, possibly after the garbage collection has returned. The test therefore polls.
    await until(() => heldBytes() - heldBefore < 16 * MIB)
    expect(files.map(({ size }) => size)).toEqual(Array(32).fill(0))
  })
})

describe('an event stream with a frame of several megabytes', () => {
  const FRAME = `data: ${'x'.repeat(32 * MIB)}\n\n`

  it('is delivered completely to a client that reads slowly', { timeout: RUN_MS }, async () => {
    const response = await streamOf(FRAME, 1_000)
    let [read, pauseAt] = [0, 2 * MIB]
    for await (const chunk of response) {
      read += (chunk as Buffer).length
      if (read < pauseAt) continue
      await sleep(150)
      pauseAt += 2 * MIB
    }
    expect(read).toBe(FRAME.length)
  })

  it('sends the large frame before the last frame', { timeout: RUN_MS }, async () => {
    const response = await streamOf(FRAME, 100)
    await sleep(500)
    const parts: Buffer[] = []
    for await (const part of response) parts.push(part as Buffer)
    const text = Buffer.concat(parts).toString()
    expect(text.length).toBe(FRAME.length + LAST_WORDS.length)
    expect(text.slice(-LAST_WORDS.length)).toBe(LAST_WORDS)
  })

  it('divides the large frame between characters, never within a character', () => {
    const text = `data: ${'😀'.repeat(100_000)}\n\n`
    const pieces = [...framePieces(text)]
    expect(pieces.length).toBeGreaterThan(2)
    expect(Buffer.concat(pieces.map((piece) => Buffer.from(piece))).toString()).toBe(text)
  })
})

/** Starts a server that streams `text` in pieces, and returns the response as received by a client. */
async function streamOf(text: string, slowReaderMs: number) {
  const server = createServer((_req, res) => {
    writePieces(res, framePieces(text), slowReaderMs).then(
      () => endWithin(res, slowReaderMs),
      () => endWithin(res, RUN_MS, LAST_WORDS),
    )
  })
  onTestFinished(() => {
    server.closeAllConnections()
    server.close()
  })
  await once(server.listen(0, '127.0.0.1'), 'listening')
  const request = get({ port: (server.address() as AddressInfo).port, host: '127.0.0.1', agent: false })
  const [response] = await once(request, 'response')
  return response as import('node:http').IncomingMessage
}

/** Collects garbage, and returns the bytes of all array buffers that are still referenced. */
function heldBytes(): number {
  setFlagsFromString('--expose-gc')
  const collect = runInNewContext('gc') as () => void
  collect()
  return process.memoryUsage().arrayBuffers
}

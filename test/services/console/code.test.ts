import { execFile } from 'node:child_process'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { promisify } from 'node:util'
import { expect, it } from 'vitest'
import { type Call, codeOf } from '#services/console/screens/playground/call/call.ts'

const run = promisify(execFile)

/**
 * Runs the curl command that the console shows for a call. The working directory contains the file to upload.
 *
 * @returns The request body that curl sent
 */
async function sent(call: Call): Promise<string> {
  const bodies: string[] = []
  const server = createServer(async (request, response) => {
    bodies.push(await text(request))
    response.end('{}')
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const cwd = await mkdtemp(join(tmpdir(), 'sluice-code-'))
  try {
    if (call.file !== undefined) await writeFile(join(cwd, call.file), 'sound')
    const code = codeOf('curl', call, `http://127.0.0.1:${(server.address() as AddressInfo).port}`)
    await run('bash', ['-c', code], { cwd, env: { ...process.env, SLUICE_API_KEY: 'x' }, timeout: 20_000 })
    return bodies[0] ?? ''
  } finally {
    await rm(cwd, { recursive: true, force: true })
    server.close()
  }
}

it.each([
  'it\'s "here".wav',
  'a";type=html;filename="b.html',
  'back\\slash.wav',
  '$(echo run) `echo run`;echo run.wav',
])('the curl code of the console quotes the file name %s', async (file) => {
  const body = await sent({ name: 'whisper', path: '/v1/audio/transcriptions', body: { model: "it's; $(x)" }, file })
  expect(body).toContain('sound')
  expect(body).toContain("it's; $(x)")
  expect(body).not.toContain('Content-Type: html')
  expect(body).not.toContain('filename="b.html"')
})

it('the curl code of the console quotes shell characters in text', async () => {
  const text = `'; touch run; echo ' "$HOME" \\ \u2028 \u0007 ${'`id`'}`
  const body = await sent({ name: 'echo', path: '/v1/responses', body: { input: text } })
  expect(JSON.parse(body)).toEqual({ input: text })
})

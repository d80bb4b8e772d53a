import { expect } from 'vitest'
import { CodeResult } from '#schemas/kinds/code.ts'
import type { LoadAdapter } from '#shared/sandbox/choose.ts'
import type { Sandbox, SandboxAdapter, SandboxEnd } from '#shared/sandbox/sandbox.ts'
import type { Stack } from '../stack.ts'

export const CODE = '/v1/tools/code'

/** Runs Python code with a call of the code endpoint. The call must succeed, and its result must match the schema. */
export async function run(stack: Stack, code: string, more: object = {}, init: RequestInit = {}): Promise<CodeResult> {
  const response = await stack.post(CODE, { code, lang: 'python', ...more }, init)
  const body = await response.json()
  expect(response.status, `status of the code call ${JSON.stringify(body)}`).toBe(200)
  return CodeResult.parse(body)
}

/** Returns the parsed data of each frame of an event stream, in order. The end mark stays the text `[DONE]`. */
export function framesOf(text: string): unknown[] {
  const lines = text.split('\n').filter((line) => line.startsWith('data: '))
  return lines.map((line) => (line === 'data: [DONE]' ? '[DONE]' : JSON.parse(line.slice('data: '.length))))
}

/** A sandbox that runs nothing: the test defines how each run ends. Used for failures that occur in a real sandbox only if a machine breaks. */
export function scriptedAdapter(
  end: (run: number) => SandboxEnd | Promise<SandboxEnd>,
  more: Partial<SandboxAdapter> = {},
): LoadAdapter {
  let runs = 0
  const sandbox: Sandbox = {
    name: 'wasm',
    libraries: { python: '3.15.0' },
    async run(_job, onEvent) {
      onEvent({ type: 'output', stream: 'stdout', text: 'before\n' })
      return end(++runs)
    },
    stats: () => ({ idle: 0, busy: 0 }),
    close: async () => {},
  }
  const adapter: SandboxAdapter = {
    name: 'wasm',
    guarantees: [],
    prepare: async () => {},
    check: async () => {},
    open: async () => sandbox,
    ...more,
  }
  return { name: 'wasm', load: async () => adapter }
}

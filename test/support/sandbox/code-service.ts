import { afterAll, beforeAll, describe } from 'vitest'
import type { LoadAdapter } from '#shared/sandbox/choose.ts'
import { type Stack, type StackOptions, startStack, until } from '../stack.ts'
import { run } from './code-calls.ts'
import { SANDBOX_MISSING, testZygote } from './sandbox.ts'

/** The sandbox of the tests: the real adapter `zygote`. */
const ZYGOTE: LoadAdapter = { name: 'zygote', load: () => testZygote() }

/**
 * Runs the tests twice: with the embedded broker and, if a Kafka is available, over Kafka.
 *
 * @param address The value of `inject('kafka')`
 */
export function describeCode(title: string, address: string | null, tests: (stack: () => Stack) => void): void {
  for (const mode of ['embedded', 'Kafka']) {
    const kafka = mode === 'Kafka' ? (address ?? undefined) : undefined
    const isSkipped = SANDBOX_MISSING !== undefined || (mode === 'Kafka' && !kafka)
    describe.skipIf(isSkipped)(`${title}, ${mode}`, () => {
      let stack: Stack
      beforeAll(async () => {
        stack = await startCodeStack({ kafka })
      })
      afterAll(() => stack[Symbol.asyncDispose]())
      tests(() => stack)
    })
  }
}

/** Starts the service, and runs one empty program, so that the sandbox is open before the tests. */
async function startCodeStack(options: StackOptions = {}): Promise<Stack> {
  const stack = await startStack({ sandboxes: [ZYGOTE], ...options })
  await run(stack, 'pass')
  return stack
}

/** Waits until `busy` runs are in progress in the sandbox. */
export async function untilBusy(stack: Stack, busy: number): Promise<void> {
  await until(async () => {
    const text = await (await stack.get('/metrics')).text()
    return Number(/^sluice_sandbox_interpreters\{state="busy"\} (\d+)/m.exec(text)?.[1]) === busy
  })
}

import { expect, it, onTestFinished, vi } from 'vitest'
import { findGateways } from '../../bench/gateways/gateways.ts'

/** Third-party gateways for `npm run bench -- --with …`: programs at a given path, never downloaded implicitly. */

it('uses the gateway program that its variable names', async () => {
  setVariable('PORTKEY_BIN', import.meta.filename)
  const said: string[] = []
  expect(await findGateways(['portkey'], false, (line) => said.push(line))).toEqual([
    { name: 'portkey', program: import.meta.filename },
  ])
  expect(said).toEqual([])
})

it('refuses a variable that names no file', async () => {
  setVariable('SMG_BIN', '/nowhere/smg')
  await expect(findGateways(['smg'], false, () => {})).rejects.toThrow('SMG_BIN: there is no file /nowhere/smg')
})

function setVariable(name: string, value: string): void {
  vi.stubEnv(name, value)
  onTestFinished(() => void vi.unstubAllEnvs())
}

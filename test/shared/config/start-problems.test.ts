import { chmod, mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, expect, onTestFinished, test } from 'vitest'
import { PoolName } from '#schemas/job.ts'
import { ConfigError, parseConfig } from '#shared/config/config.ts'
import { RENAMED_SETTINGS, Settings } from '#shared/config/settings.ts'
import { loadModels } from '#shared/models/models.ts'
import { describePython } from '#shared/prepare/python.ts'

async function emptyDirectory(): Promise<string> {
  const directory = await mkdtemp(join(tmpdir(), 'sluice-problems-'))
  onTestFinished(() => rm(directory, { recursive: true, force: true }))
  return directory
}

function problemsOf(load: () => unknown): readonly string[] {
  try {
    load()
  } catch (error) {
    if (error instanceof ConfigError) return error.problems
    throw error
  }
  return []
}

describe('an invalid setting', () => {
  test.each([
    [{ PORT: 'abc' }, "PORT: expected a number, got 'abc'"],
    [{ PORT: '99999' }, "PORT: must be 65535 or less, got '99999'"],
    [{ INFERENCE_SLOTS: '0' }, "INFERENCE_SLOTS: must be 1 or more, got '0'"],
    [{ AUDIO_BYTES_MAX: '1.5' }, "AUDIO_BYTES_MAX: expected a whole number, got '1.5'"],
    [{ SANDBOX: 'zygot' }, "SANDBOX: expected one of auto, docker, zygote, wasm, off, got 'zygot'"],
    [{ SLUICE_URL: 'x' }, "SLUICE_URL: expected a URL such as http://host:port, got 'x'"],
    [{ KAFKA_BROKERS: 'nohost' }, "KAFKA_BROKERS: must be a comma-separated list of host:port, got 'nohost'"],
    [{ DATABASE_URL: 'mysql://a:secret@b/c' }, 'DATABASE_URL: must start with postgres://'],
  ])('is refused with its value and the valid values, without secrets: %j', (env, problem) => {
    expect(problemsOf(() => parseConfig(env))).toEqual([problem])
  })

  test('is refused with the new name if it was renamed', () => {
    expect(problemsOf(() => parseConfig({ WORKER_SILENT_MS: '3000', RUNNING_MAX_PER_KEY: '4' }))).toEqual([
      'RUNNING_MAX_PER_KEY was renamed: set CONCURRENCY_MAX_PER_KEY instead.',
      'WORKER_SILENT_MS was renamed: set WORKER_SUSPECTED_MS instead.',
    ])
    for (const name of Object.values(RENAMED_SETTINGS)) expect(Settings.shape, `setting ${name}`).toHaveProperty(name)
  })
})

describe('an invalid models.yaml', () => {
  const OPENAI = "engine: {type: openai, base_url: 'http://x/v1'"
  test.each([
    [
      'an unknown engine type',
      'models: [{id: m, engine: {type: opneai}}]',
      "models[0].engine.type: expected one of openai, anthropic, llama, local, research, echo, got 'opneai'",
    ],
    [
      'an unknown pool',
      `models: [{id: m, pool: inferense, ${OPENAI}}}]`,
      `models[0].pool: expected one of ${PoolName.options.join(', ')}, got 'inferense'`,
    ],
    [
      'a misspelt engine field',
      `models: [{id: m, ${OPENAI}, concurency: 3}}]`,
      /^models\[0\]\.engine: unknown field 'concurency' \(did you mean concurrency\?\)\. Valid fields: type, base_url, api_key_env, /,
    ],
    ['a number instead of an id', `models: [{id: 5, ${OPENAI}}}]`, 'models[0].id: expected a string, got 5'],
    [
      'an invalid URL',
      "models: [{id: m, engine: {type: openai, base_url: 'no url'}}]",
      /base_url: expected a URL .*, got 'no url'$/,
    ],
    ['a missing engine', 'models: [{id: m}]', /^models\[0\]\.engine: /],
    ['a YAML syntax error', 'models:\n  - id: m\n   engine: x', /line 3, column 1$/],
  ])('is refused with the position, the value and the valid values for %s', async (_, text, problem) => {
    const file = join(await emptyDirectory(), 'models.yaml')
    await writeFile(file, text)
    const [first = ''] = problemsOf(() => loadModels(file))
    const start = `MODELS_FILE: ${file}: `
    expect(first.slice(0, start.length)).toBe(start)
    if (typeof problem === 'string') expect(first.slice(start.length)).toBe(problem)
    else expect(first.slice(start.length)).toMatch(problem)
  })

  test('is refused with its path if the file is missing', () => {
    expect(problemsOf(() => loadModels('/none/models.yaml'))).toEqual([
      'MODELS_FILE: /none/models.yaml: there is no such file. Start in the directory that has models.yaml, or name it',
    ])
  })
})

describe('an unusable Python interpreter', () => {
  const answering = async (version: string, hasPip: boolean) => {
    const file = join(await emptyDirectory(), 'bin', 'python3')
    await mkdir(join(file, '..'))
    const said = `{"executable": "${file}", "tag": "t", "version": [${version}], "has_pip": ${hasPip}}`
    await writeFile(file, `#!/bin/sh\necho '${said}'\n`)
    await chmod(file, 0o755)
    return file
  }
  const asked = (file: string) =>
    describePython(file, undefined, { purpose: 'It needs', needsPip: true }).catch(({ message }) => message as string)

  test('is refused with the cause: not found, older than 3.10, or without pip', async () => {
    const [old, bare, fine] = [
      await answering('3,9,2', true),
      await answering('3,12,1', false),
      await answering('3,12,1', true),
    ]
    expect(await asked('/none/python3')).toBe(
      'It needs Python 3.10 or newer with pip: install python3 and python3-pip (/none/python3 was not found).',
    )
    expect(await asked(old)).toMatch(
      /: \S+ has version 3\.9\.2\. Install Python 3\.10 or newer, and put its python3 first in PATH\.$/,
    )
    expect(await asked(bare)).toMatch(/: \S+ has no pip\. Install python3-pip\.$/)
    expect(await asked(fine)).toMatchObject({ executable: fine })
  })
})

/** The official SDKs whose own tests run here, and their tests of endpoints that Sluice serves. */
import { SDKS } from '../sdks.ts'

export interface Suite {
  readonly name: string
  readonly language: 'python' | 'js'
  /** The package with its version, in the syntax of the installer. */
  readonly package: string
  /** Additional packages that its tests import. */
  readonly needs: readonly string[]
  /** Repository of the tests, if the package does not include them. The tag may be older than the package version, if its tests are still valid. */
  readonly repository?: string
  readonly tag?: string
  /** Path that the base URL in the SDK's settings must have. */
  readonly path: '/v1' | ''
  /** Files and folders to run, relative to the test folder. */
  readonly tests: readonly string[]
  /** pytest plugins that the SDK's own configuration loads. The tests run without this configuration, so the plugins are named here. */
  readonly plugins?: readonly string[]
}

const PYTEST = ['pytest==9.0.3', 'pytest-asyncio==1.4.0', 'pytest-xdist==3.8.0', 'rich==14.3.3']

export const SUITES: readonly Suite[] = [
  {
    name: 'openai-python',
    language: 'python',
    package: `openai[aiohttp]==${SDKS.openaiPython}`,
    needs: PYTEST,
    path: '/v1',
    tests: [
      ...['completions', 'embeddings', 'models', 'responses', 'batches', 'files', 'conversations', 'moderations'].map(
        (name) => `api_resources/test_${name}.py`,
      ),
      ...['chat', 'responses', 'conversations'].map((path) => `api_resources/${path}`),
      ...['transcriptions', 'translations', 'speech'].map((name) => `api_resources/audio/test_${name}.py`),
    ],
  },
  {
    name: 'anthropic-python',
    language: 'python',
    package: `anthropic[aiohttp]==${SDKS.anthropicPython}`,
    plugins: ['tests._alias_httpx'],
    needs: [...PYTEST, 'http-snapshot[httpx]==0.1.9', 'inline-snapshot', 'dirty-equals', 'respx', 'time-machine'],
    path: '',
    tests: ['', 'beta/'].flatMap((at) =>
      ['test_messages.py', 'test_models.py', 'messages'].map((path) => `api_resources/${at}${path}`),
    ),
  },
  {
    name: 'openai-node',
    language: 'js',
    package: `openai@${SDKS.openaiNode}`,
    needs: ['vitest@4.1.10'],
    repository: 'https://github.com/openai/openai-node',
    tag: 'v7.5.0',
    path: '/v1',
    tests: [
      ...['completions', 'embeddings', 'models', 'batches', 'files', 'moderations'].map(
        (name) => `api-resources/${name}.test.ts`,
      ),
      ...[
        'chat/',
        'responses/',
        'conversations/',
        'audio/transcriptions.test.ts',
        'audio/translations.test.ts',
        'audio/speech.test.ts',
      ].map((path) => `api-resources/${path}`),
    ],
  },
  {
    name: 'anthropic-typescript',
    language: 'js',
    package: `@anthropic-ai/sdk@${SDKS.anthropicNode}`,
    needs: ['vitest@4.1.10'],
    repository: 'https://github.com/anthropics/anthropic-sdk-typescript',
    tag: 'sdk-v0.120.0',
    path: '',
    tests: ['', 'beta/'].flatMap((at) =>
      [`${at}models.test.ts`, `${at}messages/`].map((path) => `api-resources/${path}`),
    ),
  },
]

/** Model names in the requests of the tests. The tests do not check the text of answers, so the echo model serves all of these names. */
export const TEST_MODELS = [
  ...['auto', 'model', 'model_id', 'string', 'gpt-3.5-turbo-instruct', 'gpt-4o-mini', 'gpt-5.4', 'gpt-6-astra'],
  ...['claude-opus-4-6', 'claude-opus-5', 'claude-opus-5-5'],
  // Models that the SDKs report as deprecated.
  ...['1.3', '1.3-100k', 'instant-1.1', 'instant-1.1-100k', 'instant-1.2', '2.0', '2.1', '3-sonnet-20240229'].map(
    claude,
  ),
  ...['3-opus-20240229', '3-5-haiku-20241022', '3-5-haiku-latest', '3-7-sonnet-20250219', '3-7-sonnet-latest'].map(
    claude,
  ),
  ...['opus-4-0', 'opus-4-20250514', 'sonnet-4-0', 'sonnet-4-20250514', 'sonnet-4-5', 'sonnet-4-5-20250929'].map(
    claude,
  ),
  'claude-mythos-preview',
]

function claude(version: string): string {
  return `claude-${version}`
}

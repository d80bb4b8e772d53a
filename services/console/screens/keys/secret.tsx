import { useEffect, useRef } from 'preact/hooks'
import { CopyButton } from '#services/console/parts/copy-button.tsx'
import { Icon } from '#services/console/parts/icon.tsx'
import type { CreatedKey } from './state.ts'

/** The secret of a new key. The API returns it once. */
export function Secret({ createdKey, close }: { readonly createdKey: CreatedKey; readonly close: () => void }) {
  const secret = useRef<HTMLElement>(null)
  useEffect(() => secret.current?.focus(), [])
  return (
    <>
      <p class="note warn">
        <Icon name="warn" />
        <span>Copy this key now. You won’t be able to see it again.</span>
      </p>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: the focus moves here, so that screen readers announce the new key. */}
      <code class="secret" ref={secret} tabIndex={0}>
        {createdKey.secret}
      </code>
      <p class="dim">
        Key ID: <code>{createdKey.id}</code>. Send the key as <code>Authorization: Bearer …</code>
      </p>
      <div class="actions end">
        <CopyButton text={createdKey.secret} label="Copy key" />
        <button type="button" class="primary" onClick={close}>
          Done
        </button>
      </div>
    </>
  )
}

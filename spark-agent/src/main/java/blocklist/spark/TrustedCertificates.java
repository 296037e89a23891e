package blocklist.spark;

import java.io.FileInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.security.GeneralSecurityException;
import java.security.KeyStore;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.util.Iterator;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLSocketFactory;
import javax.net.ssl.TrustManagerFactory;

/** Certificates of a PEM file as the only trusted ones. */
final class TrustedCertificates {
  private TrustedCertificates() {}

  /** Throws IOException, with the file's name, if it cannot be read or has no certificates. */
  static SSLSocketFactory socketFactory(String file) throws IOException {
    try {
      TrustManagerFactory managers = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
      managers.init(keyStore(file));
      SSLContext context = SSLContext.getInstance("TLS");
      context.init(null, managers.getTrustManagers(), null);
      return context.getSocketFactory();
    } catch (GeneralSecurityException e) {
      throw new IOException("spark.blocklist.caFile " + file + " has no valid certificates: " + e.getMessage());
    }
  }

  private static KeyStore keyStore(String file) throws IOException, GeneralSecurityException {
    KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
    store.load(null, null);
    InputStream in = new FileInputStream(file);
    try {
      Iterator certificates = CertificateFactory.getInstance("X.509").generateCertificates(in).iterator();
      for (int i = 0; certificates.hasNext(); i++) store.setCertificateEntry("ca" + i, (Certificate) certificates.next());
    } finally {
      in.close();
    }
    return store;
  }
}
